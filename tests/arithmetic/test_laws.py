"""Laws that hold for any job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import Job
from advisor.ledger import OUTSIDE_ALLOCATED
from tests.arithmetic.jobs import TINY, job

STRATEGIES = ("none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron-distributed")
PADDING = 64 * 1024  # a tensor's share is padded to whole elements, tens of tensors


def peak(j: Job) -> int:
    return estimate(j).peak().bytes


@st.composite
def varied(draw: st.DrawFn) -> dict[str, Any]:
    strategy = draw(st.sampled_from(STRATEGIES))
    kind = draw(st.sampled_from(("full", "lora")))
    base = draw(st.sampled_from(("none", "nf4", "int8"))) if kind == "lora" else "none"
    return {
        "method": {"kind": kind, "rank": draw(st.sampled_from((4, 16))), "targets": "all-linear", "base": base} if kind == "lora" else {"kind": "full"},
        "activations": {"checkpointing": draw(st.sampled_from(("none", "full"))), "attention": draw(st.sampled_from(("eager", "sdpa", "flash-2")))},
        "parallel": {"strategy": strategy, "shard": 1 if strategy in ("none", "ddp") else draw(st.sampled_from((2, 4, 8)))},
        "optimizer": {"name": draw(st.sampled_from(("adamw", "adamw-8bit", "adafactor", "sgd", "lion", "muon"))), "states": None},
        "batch": {"gradient_accumulation": draw(st.sampled_from((1, 4)))},
    }


@given(varied())
@settings(max_examples=40, deadline=None)
def test_the_parts_at_the_peak_add_up_to_the_peak(sections: dict[str, Any]) -> None:
    ledger = estimate(job(**sections))
    top = ledger.peak()
    assert sum(h.bytes for h in top.holdings) == top.bytes == sum(ledger.by_part().values())
    totals = ledger.expected_totals()
    assert totals["max_allocated"].expected == top.bytes
    assert totals["device_used"].expected == top.bytes + ledger.outside("allocator") + ledger.outside("context")
    assert all(h.bytes >= 0 for h in ledger.holdings)


@given(varied(), st.sampled_from(("micro_batch", "seq_len", "layers", "hidden", "vocab", "rank")))
@settings(max_examples=60, deadline=None)
def test_more_of_anything_never_costs_less(sections: dict[str, Any], what: str) -> None:
    less = job(**sections)
    if what in ("micro_batch", "seq_len"):
        more = less.but(batch={what: 2 * getattr(less.batch, what)})
    elif what == "rank":
        more = less.but(method={"rank": 4 * (less.method.rank or 4)})
    else:
        key = {"layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size"}[what]
        more = job({key: 2 * TINY[key]}, **sections)
    assert peak(more) >= peak(less)


@given(varied())
@settings(max_examples=40, deadline=None)
def test_more_ranks_never_make_state_larger(sections: dict[str, Any]) -> None:
    if sections["parallel"]["shard"] == 1:
        return
    less = job(**sections)
    more = less.but(parallel={"shard": 2 * (less.parallel.shard or 1)})
    for part in ("weights", "gradients", "optimizer"):
        before, after = (estimate(j).by_part("step.update").get(part, 0) for j in (less, more))
        assert after <= before + PADDING


@given(varied())
@settings(max_examples=40, deadline=None)
def test_nothing_below_what_must_be_resident(sections: dict[str, Any]) -> None:
    j = job(**sections)
    arch_elements = sum(h.values["trained_elements"] for h in estimate(j).holdings if h.name == "trained weights")
    if arch_elements:
        assert peak(j) >= 2 * arch_elements // (j.parallel.shard or 1)


def test_moments_outside_the_run_are_not_listed() -> None:
    ledger = estimate(job())
    known = {m.id for m in ledger.moments}
    assert not any(m.startswith(("rollout", "sync", "eval", "save")) for m in known)
    assert all(h.moments <= known | {"load.materialise"} or h.part in OUTSIDE_ALLOCATED for h in ledger.holdings)


@pytest.mark.parametrize("field", ["micro_batch", "seq_len"])
def test_what_decides_and_is_unknown_is_named(field: str) -> None:
    from msgspec.structs import replace

    from advisor.run import resolve

    run = resolve(job())
    with pytest.raises(CannotEstimate, match=field):
        estimate(replace(run, job=run.job.but(batch={field: None})))


def test_two_estimates_of_one_job_are_equal_and_of_two_jobs_are_not() -> None:
    assert estimate(job()) == estimate(job())
    assert estimate(job()) != estimate(job(batch={"micro_batch": 3, "seq_len": 512}))
