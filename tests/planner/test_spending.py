"""A run that fits with room: what the room buys."""

from __future__ import annotations

from advisor.arithmetic import estimate
from advisor.planning import Constraints, plan
from advisor.speed import step_time
from tests.planner.pinned import run_of


def test_over_a_bus_room_buys_whole_parameters() -> None:
    """ZeRO-3 gathers them for each pass; ZeRO-2 does not."""
    start = run_of("j3", "l40s-48gb")
    made = plan(start)
    assert made.fits
    assert not made.steps
    assert [step.technique for step in made.runner_up] == ["zero-2"]
    assert "whole parameters" in made.summary
    after = made.runner_up[0].run
    assert after is not None and start.usable is not None
    assert after.job.parallel.strategy == "zero2"
    assert step_time(after).expected < 0.97 * step_time(start).expected
    assert estimate(after).expected_totals()["max_allocated"].expected < start.usable[0]
    assert any('"stage": 2' in line for lines in made.runner_up[0].settings.values() for line in lines)


def test_it_is_not_offered_where_it_is_excluded_or_worth_nothing() -> None:
    assert not plan(run_of("j3", "l40s-48gb"), allow=Constraints(exclude=frozenset({"zero-2"}))).runner_up
    assert not plan(run_of("j3", "a100-80gb")).runner_up, "over NVLink the gathers hide"
