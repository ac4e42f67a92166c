"""Every known model under drawn combinations of everything else: an estimate, or a CannotEstimate that names the field; nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from advisor import knowledge
from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import read_job

MODELS = [json.loads(p.read_text(encoding="utf-8"))["hub_id"] for p in sorted(knowledge.path("models").glob("*__*.json"))]
METHODS: tuple[Mapping[str, Any], ...] = (
    {"kind": "full"}, {"kind": "lora", "rank": 16, "targets": "all-linear"}, {"kind": "lora", "rank": 16, "targets": "all-linear", "base": "nf4"},
    {"kind": "lora", "targets": "qv", "base": "int8"}, {"kind": "dora", "targets": "attention"}, {"kind": "lora", "base": "mxfp4"},
    {"kind": "lora", "base": "gptq-int4", "modules_to_save": ["lm_head", "embed_tokens"]},
    *({"kind": k} for k in ("freeze", "galore", "lisa", "badam", "lomo")),
)  # fmt: skip
LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {}, {"strategy": "ddp", "replicate": 8}, {"strategy": "fsdp2", "shard": 8}, {"strategy": "fsdp2", "shard": 8, "context": 2},
    *({"strategy": s, "shard": 8} for s in ("fsdp1", "zero1", "zero2", "zero3", "megatron-fsdp")), {"device_map": [0.5, 0.3, 0.2]},
    {"strategy": "megatron-distributed", "tensor": 2, "pipeline": 2, "shard": 2}, {"strategy": "megatron", "tensor": 8, "sequence": True},
    {"strategy": "megatron-distributed", "expert": 4, "shard": 8, "pipeline": 4, "virtual_stages": 2, "microbatches": 8},
)  # fmt: skip
OPTIMIZERS = (
    "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "adamw-4bit", "adafactor", "sgd", "sgd-momentum", "lion", "muon", "adam-mini",
    "galore-adamw", "apollo", "cpu-adam",
)  # fmt: skip
OBJECTIVES = ("pretrain", "sft", "dpo", "kto", "orpo", "reward", "grpo", "ppo", "rloo")
SOURCES = (None, "huggingface", "megatron", "torchtune", "torchtitan", "litgpt", "remote-code")
FRAMEWORKS = (
    None, "hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "torchtune", "torchtitan", "deepspeed", "accelerate", "litgpt", "fsdp-qlora",
    "llm-foundry", "megatron-lm", "megatron-bridge", "nemo", "verl", "openrlhf", "ms-swift", "colossalchat", "arctic", "custom",
)  # fmt: skip
LOSSES = ("full-fp32", "full", "fused", "vocab-parallel", "chunked", "fused-linear")
TRANSFORMERS = (None, "4.40.0", "4.47.1", "4.56.2", "5.1.0")


def drawn(model: str, rng: random.Random) -> dict[str, Any]:
    """A job of the model with everything else drawn."""
    objective, source, name, version = (rng.choice(x) for x in (OBJECTIVES, SOURCES, FRAMEWORKS, TRANSFORMERS))
    job: dict[str, Any] = {
        "version": 1, "model": {"name": model}, "method": rng.choice(METHODS), "objective": objective, "parallel": rng.choice(LAYOUTS),
        "batch": {"micro_batch": rng.choice((1, 4)), "seq_len": rng.choice((512, 4096)), "packed": rng.choice((True, False))},
        "activations": {"checkpointing": rng.choice(("none", "full", "selective")), "attention": rng.choice(("eager", "sdpa", "flash-2"))},
        "optimizer": {"name": rng.choice(OPTIMIZERS)}, "hardware": {"gpu": rng.choice(("a100-80gb", "t4-16gb"))}, "framework": {},
    }  # fmt: skip
    job["activations"]["loss"] = rng.choice(LOSSES)
    if source:
        job["model"]["source"] = source
    if rng.random() < 0.5:
        job["model"]["vision"] = {"tower": rng.choice(("frozen", "trained", "skipped")), "tokens": 256}
    if name:
        job["framework"]["name"] = name
    if version:
        job["framework"]["versions"] = {"torch": "2.6.0", "transformers": version}
    if objective in ("grpo", "ppo", "rloo"):
        job["rollout"] = {"engine": rng.choice(("vllm", "sglang", "hf")), "placement": "colocated", "memory_fraction": 0.3, "logprob_micro_batch": 8}
        job["rollout"]["sleep"] = rng.choice(("none", "level-1", "level-2"))
        job["reference"] = rng.choice(("copy", "adapter-off", "offloaded"))
    if objective == "ppo":
        job["critic"] = job["reward"] = "copy"
    if rng.random() < 0.3:
        job |= {"eval": {}, "resume": {"map": "device"}, "load": {"materialise": "every-rank"}}
        job["save"] = {"format": "full", "merge": rng.choice(("none", "device", "host"))}
    if rng.random() < 0.3:
        job["offload"] = {"activations": "cpu", "optimizer": "cpu", "parameters": rng.choice(("cpu", "none"))}
    return job


@pytest.mark.parametrize("seed", range(2))
def test_every_known_model_is_estimated_whatever_else_the_job_says(seed: int) -> None:
    wrong: list[str] = []
    estimated = 0
    for model in MODELS:
        rng = random.Random(f"{model} {seed}")
        job = drawn(model, rng)
        try:
            ledger = estimate(read_job(job))
            top = ledger.peak()
            assert top.bytes > 0, "nothing at the peak"
            assert all(type(h.bytes) is int and h.bytes >= 0 for h in ledger.holdings), "a holding is negative or no whole number"
            assert sum(h.bytes for h in top.holdings) == top.bytes == sum(ledger.by_part().values()), "the parts do not add up"
            if rng.random() < 0.1:
                assert all(0 <= i.low <= i.expected <= i.high for i in ledger.totals().values()), "a range is out of order"
            estimated += 1
        except CannotEstimate as error:
            assert error.field and str(error)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}\n  {job}")
    assert not wrong, "\n".join(wrong[:3])
    assert estimated > 0.95 * len(MODELS)
