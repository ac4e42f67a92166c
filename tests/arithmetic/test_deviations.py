"""Every deviation is a holding of its own and never makes the peak smaller."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.deviation import Deviation, extra, ineffective, retained, widened
from advisor.run import resolve
from tests.arithmetic.jobs import job

SHARDED = {"parallel": {"strategy": "fsdp1", "shard": 8}}


@pytest.mark.parametrize(
    "deviation",
    [
        extra("weights", dtype="bf16", phases=("load", "step")),
        extra("weights", dtype="fp32"),
        extra("communication", bytes=1 << 30),
        extra("reference"),
        ineffective("activations.checkpointing"),
        ineffective("parallel.strategy"),
        widened("precision.weights", "fp32"),
        retained("activations", 3),
        retained("logits", 2),
    ],
    ids=lambda d: f"{d.kind}-{d.part or d.field}",
)
def test_a_deviation_costs_memory(deviation: Deviation) -> None:
    run = resolve(job(**SHARDED))
    before, after = estimate(run), estimate(run.deviating(deviation))
    assert max(after.allocated_by_moment().values()) > max(before.allocated_by_moment().values()) or any(
        after.allocated_by_moment()[m] > v for m, v in before.allocated_by_moment().items()
    )


def test_an_extra_copy_is_named_and_avoidable() -> None:
    run = resolve(job())
    ledger = estimate(run.deviating(extra("weights", dtype="bf16")))
    copy = next(h for h in ledger.copies() if h.name.startswith("one more"))
    assert copy.need == "avoidable"
    assert copy.bytes == next(h.bytes for h in ledger.holdings if h.name == "trained weights")


def test_sharding_inactive_at_load_holds_the_whole_model() -> None:
    run = resolve(job(**SHARDED))
    whole = estimate(run.deviating(ineffective("parallel.strategy", phases=("load",))))
    assert whole.at("load") >= 8 * next(h.bytes for h in whole.holdings if h.name == "trained weights")
    assert whole.at("step") == estimate(run).at("step")


@pytest.mark.parametrize("phase", ["save", "resume", "eval", "merge"])
def test_a_fault_makes_its_phase_real(phase: str) -> None:
    run = resolve(job(**SHARDED))
    assert phase not in estimate(run).phases()
    faulted = estimate(run.deviating(extra("weights", bytes=1 << 33, phases=(phase,))))
    assert faulted.at(phase) >= 1 << 33
    assert faulted.peak().phase == phase


def test_a_merge_that_widens_the_base() -> None:
    run = resolve(job(method={"kind": "lora", "rank": 8, "targets": "attention", "base": "nf4"}))
    merged = estimate(run.deviating(ineffective("method.base", phases=("merge",))))
    widened_base = next(h for h in merged.holdings if h.name == "quantised base in 16 bit")
    assert widened_base.bytes > 2 * next(h.bytes for h in merged.holdings if h.name == "base in nf4")
