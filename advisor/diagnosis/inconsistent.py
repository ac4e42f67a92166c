"""What the texts say that cannot hold together, and what is not known by name: notes beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor import cards
from advisor.evidence import Evidence
from advisor.run import Run


def notes(run: Run, evidence: Evidence) -> Iterator[str]:
    """Settings that exclude each other, sizes that cannot be, a model or a card that the catalogue does not know."""
    yield from _both_halves(evidence)
    for item in evidence.not_understood:
        if "cannot run" in item.why:
            yield f"{item.where}: {item.text}: {item.why}."
    name = run.job.model.name
    if name and run.architecture is None:
        yield f"The model {name} is not known here: its config.json (or its number of parameters) makes an estimate possible."
    gpu = run.job.hardware.gpu
    if isinstance(gpu, str) and cards.catalogue().get(gpu) is None and cards.find(gpu) is None:
        yield f"The card {gpu} is not known here: give its memory (hardware.gpu: {{name, memory_gib}})."


_SAYS = "transformers TrainingArguments refuses it: at most one of them can be True"


def _both_halves(evidence: Evidence) -> Iterator[str]:
    """``fp16`` and ``bf16`` both on in one section. Without sections reading tells it by call or command, as a conflict (reading.configs.disagreements)."""
    on: dict[tuple[str, str], dict[str, str]] = {}
    for where, key, value in evidence.seen_keys:
        section, _, leaf = key.rpartition(".")
        if section and leaf in ("fp16", "bf16") and _true(value):
            on.setdefault((where.rpartition(":")[0], section), {}).setdefault(leaf, where)
    for places in on.values():
        if len(places) == 2:
            yield f"fp16 ({places['fp16']}) and bf16 ({places['bf16']}) are both on; {_SAYS}."


def _true(value: Any) -> bool:
    return value is True or str(value).strip().lower() == "true"
