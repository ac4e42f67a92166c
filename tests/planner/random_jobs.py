"""Random jobs of every framework, strategy and card, by seed."""

from __future__ import annotations

import random
from typing import Any

from advisor.job import read_job
from advisor.run import Run, resolve

MODELS = ("meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-14B", "google/gemma-2-9b", "mistralai/Mixtral-8x7B-v0.1")
LARGE = "meta-llama/Llama-3.1-70B"
CARDS = ("t4-16gb", "rtx4090-24gb", "l40s-48gb", "a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb")
ANY_STRATEGY = ("trl", "hf-trainer", "axolotl", "llama-factory", "custom", "accelerate", "ms-swift", "openrlhf", "litgpt")
OWN_STRATEGY = {
    "torchtune": ("fsdp2",), "torchtitan": ("fsdp2",), "verl": ("fsdp2",), "megatron-lm": ("megatron-distributed",), "deepspeed": ("zero1", "zero2", "zero3"),
}  # fmt: skip
NO_ADAPTERS = ("megatron-lm", "torchtitan")
PREFERENCES = ("trl", "axolotl", "llama-factory")


def random_run(seed: int, *, one_card: bool = False) -> Run:
    """The run of one seed; ``one_card``: on a single card, with sequences that such a card is used for."""
    draw = random.Random(seed)
    per_node = 1 if one_card else draw.choice([1, 2, 4, 8])
    nodes = draw.choice([1, 1, 2, 8]) if per_node == 8 else 1
    ranks = per_node * nodes
    framework = draw.choice([*ANY_STRATEGY, *OWN_STRATEGY, *(("unsloth",) if ranks == 1 else ())])
    choices = OWN_STRATEGY.get(framework, ("ddp", "zero2", "zero3", "fsdp2"))
    strategy = "none" if ranks == 1 and framework != "megatron-lm" else draw.choice(choices)
    objective = draw.choice(["sft", "sft", "pretrain", "dpo"]) if framework in PREFERENCES else "sft"
    adapted = framework not in NO_ADAPTERS and objective != "pretrain" and draw.random() < 0.4
    packed = adapted and strategy in ("none", "ddp") and draw.random() < 0.3
    job: dict[str, Any] = {
        "version": 1, "model": {"name": draw.choice([*MODELS, LARGE])}, "objective": objective,
        "method": {"kind": "lora", **({"base": "nf4"} if packed else {})} if adapted else {"kind": "full"},
        "batch": {"micro_batch": draw.choice([1, 2, 4, 8, 16]), "seq_len": draw.choice([512, 2048, 4096, 16384, *(() if one_card else (65536, 131072))]),
                  "gradient_accumulation": draw.choice([1, 1, 4, 16])},
        "activations": {"checkpointing": draw.choice(["none", "full"])},
        "parallel": {"strategy": strategy, ("replicate" if strategy == "ddp" else "shard"): ranks},
        "hardware": {"gpu": draw.choice(CARDS), "gpus_per_node": per_node, "nodes": nodes}, "framework": {"name": framework},
    }  # fmt: skip
    return resolve(read_job(job))
