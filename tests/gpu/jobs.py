"""A dozen small jobs whose tensors are large enough to leave the allocator's small pool: each runs in seconds on a card of 16 GB."""

from __future__ import annotations

from typing import Any

from advisor.job import read_job
from advisor.run import Run, resolve

SHAPE = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32_000,
}  # fmt: skip
LLAMA = {"config": {"model_type": "llama", **SHAPE}}
GPT2 = {"config": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 4, "n_head": 16, "vocab_size": 32_000, "n_positions": 1024}}
GEMMA = {"config": {"model_type": "gemma2", **SHAPE, "head_dim": 64, "sliding_window": 512}}
MIXTRAL = {"config": {"model_type": "mixtral", **SHAPE, "intermediate_size": 1024, "num_local_experts": 4, "num_experts_per_tok": 2}}
FULL = {"checkpointing": "full", "reentrant": False, "attention": "sdpa"}
LORA = {"kind": "lora", "rank": 16, "targets": "all-linear"}
AUTOCAST = {"weights": "fp32", "compute": "bf16", "mixed": "autocast"}
JOBS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-fp32": {"precision": {"weights": "fp32", "compute": "fp32", "mixed": "none"}},
    "llama-autocast": {"precision": AUTOCAST},
    "llama-checkpointing": {"activations": FULL},
    "llama-reentrant": {"activations": {**FULL, "reentrant": True}},
    "llama-accumulation": {"batch": {"gradient_accumulation": 4}},
    "llama-fused": {"optimizer": {"name": "adamw", "implementation": "fused"}},
    "llama-lora": {"method": LORA},
    "llama-lora-checkpointing": {"method": LORA, "activations": FULL},
    "llama-eager": {"activations": {"attention": "eager"}},
    "gpt2-dropout": {"model": GPT2},
    "gemma2": {"model": GEMMA, "activations": {"attention": "eager"}},
    "mixtral": {"model": MIXTRAL},
}


def written(name: str, gpu: str | dict[str, Any]) -> dict[str, Any]:
    """The job file of a name, on a card: its id, or name and memory."""
    job: dict[str, Any] = {
        "version": 1, "name": f"card-{name}", "model": LLAMA, "method": {"kind": "full"},
        "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"}, "optimizer": {"name": "adamw", "implementation": "foreach"},
        "batch": {"micro_batch": 4, "seq_len": 1024, "gradient_accumulation": 1}, "activations": {"checkpointing": "none", "attention": "sdpa"},
        "framework": {"name": "custom"}, "hardware": {"gpu": gpu},
    }  # fmt: skip
    for section, values in JOBS[name].items():
        job[section] = {**job[section], **values} if section != "model" else values
    return job


def run_of(name: str, gpu: str = "a100-80gb") -> Run:
    """The same, resolved."""
    return resolve(read_job(written(name, gpu)))
