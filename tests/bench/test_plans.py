"""Plans of many random jobs: the laws hold of each, how long one takes, and how many candidates a second are measured.

``ADVISOR_PLANS``: how many jobs (1,000 in ``make bench``).
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from advisor.job import read_job
from advisor.planner.measuring import Bench
from advisor.planning import Constraints, plan
from advisor.run import Run, resolve
from tests.planner.laws import hold, runs

JOBS = int(os.environ.get("ADVISOR_PLANS", "50"))
_taken: list[float] = []


@given(start=runs())
@settings(max_examples=JOBS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def _each(start: Run) -> None:
    began = time.process_time()
    made = plan(start)
    _taken.append(time.process_time() - began)
    hold(start, made)


def test_plans_of_random_jobs_hold() -> None:
    _taken.clear()
    _each()
    found = sorted(_taken)
    print(f"\n{len(found)} plans: median {statistics.median(found) * 1e3:.0f} ms, 95 % within {found[int(0.95 * len(found))] * 1e3:.0f} ms")
    assert statistics.median(found) < 0.3


def test_candidates_a_second() -> None:
    reference = resolve(read_job((Path(__file__).parents[1] / "jobs" / "j4.yaml").read_bytes()).but(hardware={"gpu": "rtx4090-24gb"}))
    bench = Bench(reference, lambda r: r.usable[0] if r.usable else None, None, Constraints())
    bench.measure(())
    began, count = time.process_time(), 0
    for name in ("gradient-checkpointing", "smaller-micro-batch", "fused-linear-loss", "shorter-sequence", "qlora", "lora"):
        for times in (1, 2):
            count += bench.measure(((name, times),)) is not None
    taken = time.process_time() - began
    print(f"\n{count / taken:.0f} candidates a second")
    assert count / taken > 100
