"""The reverse: a run that fits with room spends the room on speed, every set re-estimated, as long as it still fits with its margin."""

from __future__ import annotations

from advisor.planner.measuring import Bench, Candidate
from advisor.techniques import all_techniques

SPARE = ("less-offload", "less-checkpointing", "larger-micro-batch", "hybrid-shard")
WORTH = 0.97  # of the time of a token: less than that is no reason to change a run that works
MOST_DOUBLINGS = 6


def spend(bench: Bench, start: Candidate) -> Candidate:
    """The fastest set of changes found that still fits; ``start`` itself where none is worth it. One more change at a time, the best first."""
    best = start
    while True:
        open_ones = [c for c in _next(bench, best) if c.seconds_per_token < WORTH * best.seconds_per_token and bench.fits(c)]
        if not open_ones:
            return _divided_less(bench, best)
        best = min(open_ones, key=lambda c: c.seconds_per_token)


def _divided_less(bench: Bench, c: Candidate) -> Candidate:
    """Whole parameters on every rank (ZeRO-2 in place of 3), which need not be gathered for each pass: alone, where nothing else was worth it."""
    job = c.run.job
    if c.changes or job.parallel.strategy != "zero3" or job.offload.parameters not in (None, "none") or not bench.constraints.within(1):
        return c
    if not bench.constraints.permits(all_techniques()["zero-2"]):
        return c
    less = bench.of_run((("zero-2", 1),), c.run.but(parallel={"strategy": "zero2"}), c)
    return less if less is not None and bench.fits(less) and less.seconds_per_token < WORTH * c.seconds_per_token else c


def _next(bench: Bench, c: Candidate) -> list[Candidate]:
    """With each change that is not in the set yet, or once more where it can be repeated."""
    found = []
    for name in SPARE:
        times = dict(c.changes).get(name, 0)
        if not bench.constraints.permits(all_techniques()[name]) or times >= (MOST_DOUBLINGS if name == "larger-micro-batch" else 1):
            continue
        tried = bench.measure((*(change for change in c.changes if change[0] != name), (name, times + 1)))
        if tried is not None:
            found.append(tried)
    return found
