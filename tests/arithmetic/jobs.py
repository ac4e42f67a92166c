"""A small job that the tests of the arithmetic vary."""

from __future__ import annotations

from typing import Any

from advisor.job import Job, read_job

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 8000, "tie_word_embeddings": False, "max_position_embeddings": 8192,
}  # fmt: skip


def job(config: dict[str, Any] | None = None, **sections: Any) -> Job:
    """A full bf16 run of a small Llama on one card; sections are merged over it."""
    base: dict[str, Any] = {
        "version": 1,
        "model": {"config": {**TINY, **(config or {})}, "source": "huggingface"},
        "method": {"kind": "full"},
        "objective": "sft",
        "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none", "master": "none", "gradients": "bf16"},
        "optimizer": {"name": "adamw", "states": "bf16", "implementation": "foreach"},
        "batch": {"micro_batch": 2, "seq_len": 512, "gradient_accumulation": 1, "packed": True},
        "activations": {"checkpointing": "full", "attention": "flash-2", "loss": "full-fp32", "kernels": []},
        "parallel": {"strategy": "none", "shard": 1},
        "hardware": {"gpu": "a100-80gb", "gpus_per_node": 8, "nodes": 1},
        "framework": {"name": "hf-trainer", "versions": {"torch": "2.4.1", "transformers": "4.48.1"}},
    }
    for name, value in sections.items():
        base[name] = {**base[name], **value} if isinstance(value, dict) and isinstance(base.get(name), dict) else value
    return read_job(base)
