"""Megatron's own form of ZeRO-1: what its flag divides, and where it is offered."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.planning import plan
from advisor.rules.shard.replicated_state import RULE
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques

RANKS = 4


def megatron(strategy: str = "megatron", *, tensor: int = 2, **precision: str) -> Run:
    group = {"replicate": RANKS} if strategy == "megatron" else {"shard": RANKS}
    return resolve(
        read_job(
            {
                "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "pretrain",
                "batch": {"micro_batch": 1, "seq_len": 4096, "gradient_accumulation": 8},
                "parallel": {"strategy": strategy, "tensor": tensor, "sequence": tensor > 1, **group},
                "hardware": {"gpu": "a100-40gb", "gpus_per_node": RANKS * tensor}, "framework": {"name": "megatron-lm"},
                "precision": {"compute": "bf16", **precision}, "activations": {"checkpointing": "full"},
            }
        )
    )  # fmt: skip


def test_the_flag_divides_masters_and_moments_and_nothing_else() -> None:
    """bf16 weights with fp32 gradients: 18 bytes a parameter become 6 + 12/ranks."""
    start = megatron()
    after = all_techniques()["zero-1"].apply(start)
    assert isinstance(after, Run)
    assert after.world == start.world
    before, then = estimate(start), estimate(after)
    whole, divided = (ledger.by_part(ledger.peak(("step",)).moment.id) for ledger in (before, then))
    assert divided["gradients"] == whole["gradients"]
    parameters = whole["gradients"] / 4
    state = [sum(parts[part] for part in ("weights", "gradients", "optimizer")) / parameters for parts in (whole, divided)]  # masters stand with the weights
    assert state == pytest.approx([18, 6 + 12 / RANKS], rel=0.001)


def test_it_is_offered_first_and_by_its_flag() -> None:
    made = plan(megatron(), margin_bytes=0)
    assert [step.technique for step in made.steps] == ["zero-1"]
    assert made.steps[0].settings == {"megatron-lm": ("--use-distributed-optimizer",)}


def test_it_is_not_offered_where_it_is_on_or_has_nothing_to_divide_over() -> None:
    assert isinstance(all_techniques()["zero-1"].apply(megatron("megatron-distributed")), NotApplicable)
    alone = megatron().but(parallel={"tensor": 8, "replicate": 1})
    assert isinstance(all_techniques()["zero-1"].apply(alone), NotApplicable)
    for other in ("zero-2", "zero-3", "fsdp"):
        refused = all_techniques()[other].apply(megatron())
        assert isinstance(refused, NotApplicable), other


def test_what_the_distributed_optimizer_divides_is_not_said_to_be_whole() -> None:
    exceeds = next(mark for mark in RULE.marks if mark.id == "replicated-state-exceeds")
    assert exceeds.when is not None
    said = exceeds.when(megatron(), Evidence())
    assert said is not None
    assert "optimizer state" in said
    assert f"divided by {RANKS} " in said
    divided = exceeds.when(megatron("megatron-distributed", tensor=1), Evidence())
    assert divided is not None
    assert "weights and gradients on each rank" in divided
    assert "optimizer" not in divided
