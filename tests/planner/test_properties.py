"""Over random jobs: the laws of :mod:`tests.planner.laws`. ``make bench`` draws thousands."""

from __future__ import annotations

import os

from hypothesis import given, settings

from advisor.planning import plan
from advisor.run import Run
from tests.planner.laws import hold, runs
from tests.planner.random_jobs import random_run


@given(start=runs())
@settings(max_examples=25, deadline=None)
def test_the_plan_holds(start: Run) -> None:
    hold(start, plan(start))


def test_plans_of_every_framework_hold() -> None:
    for seed in range(int(os.environ.get("ADVISOR_PLANS", "30"))):
        start = random_run(seed)
        try:
            hold(start, plan(start))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
