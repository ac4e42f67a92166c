"""How long one evaluation takes. A plan calls these hundreds of times.

Processor time, so that a busy machine says as much as a quiet one; an ordinary run looks at the best of many calls, with room. ``ADVISOR_QUIET=1``
(a quiet core) holds the medians to the targets.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.arithmetic import estimate
from advisor.frontier import batch_map
from advisor.job import read_job
from advisor.run import Run, resolve

JOBS = sorted((Path(__file__).parents[1] / "jobs").glob("j*.yaml"))
QUIET = os.environ.get("ADVISOR_QUIET") == "1"
# milliseconds: (median on a quiet core, best call anywhere)
ESTIMATE, RESOLVE, RANGES, MAP = (0.3, 1.0), (0.2, 0.8), (5.0, 25.0), (150.0, 1000.0)


def timed(call: Callable[[], object], bound: tuple[float, float], times: int) -> None:
    """Hold a call to its bound."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append((time.process_time() - start) * 1e3)
    taken, most = (statistics.median(found), bound[0]) if QUIET else (min(found), bound[1])
    assert taken <= most, f"{taken:.2f} ms, at most {most} ms"


@pytest.fixture(params=JOBS, ids=lambda p: p.stem)
def run(request: pytest.FixtureRequest) -> Run:
    """A reference job, resolved."""
    return resolve(read_job(request.param.read_text(encoding="utf-8")))


def test_an_estimate(run: Run) -> None:
    timed(lambda: estimate(run), ESTIMATE, 60)


def test_resolving(run: Run) -> None:
    timed(lambda: resolve(run.stated), RESOLVE, 60)


def test_the_ranges_of_the_totals(run: Run) -> None:
    timed(lambda: estimate(run).totals(), RANGES, 10)


def test_a_map_of_batch_and_sequence(run: Run) -> None:
    assert len(batch_map(run)) == 24 * 24
    timed(lambda: batch_map(run), MAP, 3)
