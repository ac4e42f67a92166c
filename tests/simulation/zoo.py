"""A zoo of jobs, models x methods x settings: the estimate against the probe. ``make zoo`` runs all of it; ``test_zoo`` a sample.

A difference of more than 2 % is a finding: the line says at which moment of the step, and in which part, the two differ most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from advisor.arithmetic import CannotEstimate, estimate
from advisor.beside import parts_beside, same_moment
from advisor.job import read_job
from advisor.ledger import Ledger
from advisor.run import Run, resolve
from advisor.simulation.probing import asked_of
from advisor.simulation.request import CannotProbe
from advisor.simulation.sessions import Session
from advisor.units import GIB

WITHIN = 0.02
SECONDS = 240
MODELS = (
    "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-0.6B", "mistralai/Mistral-7B-v0.1", "google/gemma-2-2b", "openai-community/gpt2",
    "microsoft/Phi-3-mini-4k-instruct", "allenai/OLMo-2-1124-7B", "EleutherAI/pythia-1b", "Qwen/Qwen3-30B-A3B",
)  # fmt: skip
LORA = {"kind": "lora", "rank": 16, "targets": "all-linear"}
AUTOCAST = {"weights": "fp32", "compute": "bf16", "mixed": "autocast"}
FSDP = {**AUTOCAST, "mixed": "fsdp", "reduce": "fp32"}
FULL = {"checkpointing": "full", "reentrant": False}
EIGHT = {"hardware": {"gpu": "h100-80gb", "gpus_per_node": 8}}
TWO = {"hardware": {"gpu": "h100-80gb", "gpus_per_node": 2}}
TRL = {"framework": {"name": "trl"}, "precision": {"mixed": "autocast"}}
LONG = {"micro_batch": 4, "seq_len": 2048}
HOME = dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")
SETTINGS: dict[str, dict[str, Any]] = {
    "full, bf16": {},
    "full, checkpointing": {"activations": FULL, "batch": LONG},
    "full, autocast": {"precision": AUTOCAST},
    "full, fused AdamW, accumulation": {"optimizer": {"name": "adamw", "implementation": "fused"}, "batch": {"gradient_accumulation": 4}},
    "full, sgd, checkpointing": {"optimizer": {"name": "sgd"}, "activations": FULL, "batch": LONG},
    "full, 8-bit AdamW": {"optimizer": {"name": "adamw-8bit"}, "activations": FULL},
    "lora": {"method": LORA, "batch": LONG},
    "lora, dropout, checkpointing": {"method": {**LORA, "dropout": 0.05}, "activations": {**FULL, "reentrant": True}, "batch": LONG},
    "qlora, checkpointing": {"method": {**LORA, "base": "nf4", "double_quant": True, "kbit_preparation": True}, "activations": FULL, "batch": LONG},
    "dora": {"method": {**LORA, "kind": "dora"}, "activations": FULL},
    "fsdp2, mixed precision, checkpointing": {
        "parallel": {"strategy": "fsdp2", "shard": 8}, "precision": FSDP, "activations": FULL, "batch": LONG, **EIGHT,
    },
    "fsdp1, lora": {"parallel": {"strategy": "fsdp1", "shard": 2, "replicate": 1}, "method": LORA, "batch": LONG, "activations": FULL, **TWO},
    "fsdp2, shards on the host": {
        "parallel": {"strategy": "fsdp2", "shard": 8}, "precision": FSDP, "activations": FULL, "offload": HOME, "batch": LONG, **EIGHT,
    },
    "fsdp2, lora": {"parallel": {"strategy": "fsdp2", "shard": 2, "replicate": 1}, "method": LORA, "batch": LONG, "activations": FULL, **TWO},
    "dpo, copy of the reference": {"objective": "dpo", "reference": "copy", "activations": {**FULL, "loss": "full-fp32"}, **TRL},
    "dpo, lora": {"objective": "dpo", "reference": "adapter-off", "method": LORA, "activations": {**FULL, "loss": "full-fp32"}, **TRL},
    "grpo, lora": {"objective": "grpo", "reference": "none", "method": LORA, "activations": {**FULL, "loss": "full-fp32"}, **TRL},
    "rows without padding": {"activations": {"sequence_packing": "padding-free"}, "batch": LONG},
    "trl, loss by tiles": {"framework": {"name": "trl"}, "activations": {**FULL, "loss": "chunked"}, "batch": LONG},
    "trl 1.7, loss by chunks": {"framework": {"name": "trl", "versions": {"trl": "1.7.0"}}, "activations": {**FULL, "loss": "chunked"}, "batch": LONG},
    "ddp": {"parallel": {"strategy": "ddp", "shard": 1, "replicate": 2}, **TWO},
}  # fmt: skip
LARGE = frozenset({"mistralai/Mistral-7B-v0.1", "allenai/OLMo-2-1124-7B", "Qwen/Qwen3-30B-A3B"})
SAMPLE = ("Qwen/Qwen3-0.6B: full, checkpointing", "meta-llama/Llama-3.2-1B: lora", "Qwen/Qwen2.5-0.5B: full, autocast")


@dataclass(frozen=True)
class Found:
    """One job's two ledgers, or why there is none of one."""

    name: str
    probed: Ledger | None = None
    estimated: Ledger | None = None
    why: str = ""

    @property
    def off(self) -> float | None:
        """Estimate over probe, less one."""
        return None if self.probed is None or self.estimated is None else self.estimated.peak().bytes / self.probed.peak().bytes - 1


def jobs() -> Iterator[tuple[str, Run]]:
    """Every job: large models in the settings that a person would give them."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    for model in MODELS:
        for label, sections in SETTINGS.items():
            if model in LARGE and label in ("full, bf16", "full, autocast", "ddp", "full, fused AdamW, accumulation", "dora"):
                continue
            job: dict[str, Any] = {
                "version": 1, "model": {"name": model}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
                "optimizer": {"name": "adamw", "implementation": "foreach"}, "batch": {"micro_batch": 2, "seq_len": 1024},
                "activations": {"checkpointing": "none", "attention": "flash-2"}, "framework": {"name": "hf-trainer", "versions": versions},
                "hardware": {"gpu": "h100-80gb"},
            }  # fmt: skip
            for section, values in sections.items():
                job[section] = {**job.get(section, {}), **values} if isinstance(values, dict) else values
            yield f"{model}: {label}", resolve(read_job(job))


def look(session: Session, name: str, run: Run) -> Found:
    """Probe and estimate one job."""
    try:
        probed = asked_of(session, run, timeout=SECONDS, say=lambda _: None, whole=False).ledger
        return Found(name, probed, estimate(run))
    except (CannotProbe, CannotEstimate) as error:
        return Found(name, why=str(error))


def line(found: Found) -> str:
    """One job in a line: sizes, difference, and where it lies."""
    if found.probed is None or found.estimated is None or found.off is None:
        return f"{found.name}: {found.why}"
    ours, theirs = same_moment(found.probed, found.estimated)
    text = f"{found.name}: {found.probed.peak().bytes / GIB:.3f} GiB probed, {found.off:+.2%} estimated ({ours.moment.id})"
    if abs(found.off) <= WITHIN:
        return text
    parts = parts_beside(found.probed, found.estimated, ours.moment.id) if theirs.moment.id == ours.moment.id else {}
    worst = sorted(parts.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:3]
    return text + "; " + ", ".join(f"{part} {(b - a) / GIB:+.3f} GiB" for part, (a, b) in worst)


def main(pattern: str = "") -> int:
    """All of it, or the names that hold a text; the exit code says whether any differ."""
    started = time.monotonic()
    found = []
    with Session() as session:
        for name, run in jobs():
            if pattern in name:
                found.append(look(session, name, run))
                print(line(found[-1]), flush=True)
    seen = [f for f in found if f.off is not None]
    apart = [f for f in seen if abs(f.off or 0) > WITHIN]
    print(f"{len(seen)} of {len(found)} jobs probed in {time.monotonic() - started:.0f} s; {len(apart)} differ by more than {WITHIN:.0%}:")
    for one in sorted(apart, key=lambda f: -abs(f.off or 0)):
        print("  " + line(one))
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
