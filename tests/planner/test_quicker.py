"""Beside recomputing every block: what fits as well and costs next to no time."""

from __future__ import annotations

from advisor.job import read_job
from advisor.planning import plan
from advisor.run import resolve


def test_a_smaller_micro_batch_and_sequence_parallelism_stand_beside_full_recomputation() -> None:
    job = read_job({
        "version": 1, "model": {"name": "meta-llama/Llama-2-13b-hf"}, "method": {"kind": "full"}, "objective": "pretrain",
        "batch": {"micro_batch": 2, "seq_len": 4096, "gradient_accumulation": 32}, "activations": {"checkpointing": "none"},
        "parallel": {"strategy": "megatron-distributed", "shard": 4, "tensor": 2, "sequence": False},
        "hardware": {"gpu": "a100-80gb", "gpus_per_node": 8}, "framework": {"name": "megatron-lm"},
    })  # fmt: skip
    made = plan(resolve(job), causes=("checkpointing-off",))
    assert [step.technique for step in made.steps] == ["gradient-checkpointing"]
    lines = [line for step in made.runner_up for text in step.settings.values() for line in text]
    assert "--micro-batch-size 1" in lines and "--sequence-parallel" in lines
    assert made.runner_up[-1].fits_after


def test_nothing_stands_beside_a_remedy_that_costs_nothing() -> None:
    job = read_job({
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "lora"}, "activations": {"checkpointing": "none", "attention": "eager"},
        "batch": {"micro_batch": 2, "seq_len": 2048}, "hardware": {"gpu": "a100-40gb"}, "framework": {"name": "trl"},
    })  # fmt: skip
    made = plan(resolve(job), causes=("attention-fallback",))
    assert made.steps[0].technique == "restore-flash-attention"
    assert not made.runner_up or not made.steps[-1].fits_after or len(made.steps) > 1
