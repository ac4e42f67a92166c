"""How long the probe of large models takes, after imports, in processor time: a few layers, extended to the byte."""

import time
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

DIVIDED = {
    "parallel": {"strategy": "fsdp2", "shard": 1024, "replicate": 1},
    "precision": {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32"},
    "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 128},
}
LIMITS = {
    "8B": ("meta-llama/Llama-3.1-8B", {}, 4),
    "70B": ("meta-llama/Llama-3.1-70B", {}, 8),
    "8B, FSDP2 on 1,024 ranks": ("meta-llama/Llama-3.1-8B", DIVIDED, 12),
    "70B, FSDP2 on 1,024 ranks": ("meta-llama/Llama-3.1-70B", DIVIDED, 20),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_few_layers_take_seconds(name: str) -> None:
    import torch

    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation import extrapolating

    model, sections, seconds = LIMITS[name]
    job: dict[str, Any] = {
        "version": 1, "model": {"name": model}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16", "mixed": "none"},
        "optimizer": {"name": "adamw"}, "batch": {"micro_batch": 1, "seq_len": 4096},
        "activations": {"checkpointing": "full", "reentrant": False, "attention": "sdpa"}, "framework": {"name": "custom"}, "hardware": {"gpu": "h100-80gb"},
    }  # fmt: skip
    run = resolve(read_job({**job, **sections}))
    torch.set_num_threads(1)
    extrapolating.ledger(resolve(read_job({**job, "model": {"name": "HuggingFaceTB/SmolLM2-135M"}})), lambda _: None, {})  # imports
    started = time.process_time()
    ledger = extrapolating.ledger(run, lambda _: None, {})
    taken = time.process_time() - started
    print(f"{name}: {taken:.1f} s, {ledger.peak().bytes / 2**30:.3f} GiB at {ledger.peak().moment.id}")
    assert taken <= seconds
