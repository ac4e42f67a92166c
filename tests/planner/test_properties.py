"""Over random jobs: the laws of :mod:`tests.planner.laws`. ``make bench`` draws thousands."""

from __future__ import annotations

from hypothesis import given, settings

from advisor.planning import plan
from advisor.run import Run
from tests.planner.laws import hold, runs


@given(start=runs())
@settings(max_examples=25, deadline=None)
def test_the_plan_holds(start: Run) -> None:
    hold(start, plan(start))
