"""The high end asked in steps is the high end of the whole range; what a run allocates is the card's business only where that is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor.arithmetic import CannotEstimate, estimate
from advisor.arithmetic.room import counted
from advisor.job import read_job
from advisor.ledger import OUTSIDE_ALLOCATED, Holding, Ledger
from advisor.run import Run, resolve
from tests.arithmetic.jobs import job
from tests.planner.random_jobs import random_run

JOBS = [resolve(read_job(yaml.safe_load(path.read_text(encoding="utf-8")))) for path in sorted((Path(__file__).parents[1] / "jobs").glob("*.yaml"))]
BARE = resolve(read_job({"version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "batch": {"micro_batch": 4, "seq_len": 4096}, "hardware": {"gpu": "h100-80gb"}}))
RUNS = [*JOBS, BARE, *map(random_run, range(60))]


@pytest.mark.parametrize("run", RUNS)
def test_asked_for_one_limit_it_is_the_high_end_of_the_whole_range(run: Run) -> None:
    try:
        whole = estimate(run).totals()["max_allocated"]
    except CannotEstimate:
        return
    for limit in (0, whole.expected - 1, whole.expected, (whole.expected + whole.high) // 2, whole.high - 1, whole.high, 2 * whole.high):
        assert estimate(run).may_allocate(limit) == (whole.high > limit), "asked first"
    asked = estimate(run)
    for limit in (2 * whole.high, whole.high - 1, whole.expected, whole.high, 0):
        assert asked.may_allocate(limit) == (whole.high > limit), "asked again, from wherever the last question ended"
    assert "totals" not in asked._cache and asked.totals()["max_allocated"] == whole
    assert asked.may_allocate(whole.high - 1) and not asked.may_allocate(whole.high)


def test_a_ledger_without_a_range_allocates_what_it_says() -> None:
    held = Ledger("measured", estimate(job()).holdings, estimate(job()).moments)
    expected = held.expected_totals()["max_allocated"].expected
    assert held.may_allocate(expected - 1) and not held.may_allocate(expected)


def test_only_a_job_that_counts_the_cards_room_holds_more_on_a_larger_card() -> None:
    def held(run: Run) -> list[Holding]:
        return [h for h in estimate(run).holdings if h.part not in OUTSIDE_ALLOCATED]

    for run in RUNS:
        try:
            small, large = (held(run.but(hardware={"gpu": card})) for card in ("h100-80gb", "h200-141gb"))
        except CannotEstimate:
            continue
        assert counted(run.job) or small == large
    engine = job(objective="grpo", rollout={"engine": "vllm", "placement": "colocated", "memory_fraction": 0.3})
    small, large = (held(resolve(engine.but(hardware={"gpu": card}))) for card in ("h100-80gb", "h200-141gb"))
    assert counted(engine) and small != large
