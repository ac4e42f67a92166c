"""No legal cheaper set within the tier is missed: random jobs against every set. ``make bench`` draws many more."""

from __future__ import annotations

import os

import pytest

from tests.planner.exhaustive import missed
from tests.planner.random_jobs import random_run

SEEDS = int(os.environ.get("ADVISOR_PLANS", "40")) // 4


def test_no_legal_cheaper_set_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, faults = 0, []
    for seed in range(SEEDS):
        number, fault = missed(random_run(seed, one_card=seed % 2 == 0), monkeypatch)
        tried += number
        if fault is not None:
            faults.append(f"{seed}: {fault}")
    print(f"\n{tried:,} sets of {SEEDS} jobs")
    assert tried > 0
    assert not faults, "\n".join(faults)
