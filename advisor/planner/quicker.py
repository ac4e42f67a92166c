"""Beside a remedy that costs time: a set of changes that fits as well and costs next to none."""

from __future__ import annotations

from advisor.planner.constraints import EVERYTHING, WEIGHT, compatible
from advisor.planner.measuring import Bench, Candidate
from advisor.planner.offering import lowers
from advisor.planner.searching import GOOD_ENOUGH, cost, shrink
from advisor.techniques import TIERLESS, all_techniques

MOST = 4  # changes of such a set


def quicker(bench: Bench, start: Candidate, end: Candidate) -> Candidate | None:
    """What saves most of the changes that cost no time and nothing else, one on top of the other until it fits; ``None`` where that is not cheaper.

    Halving the micro batch and dividing the residual stream over a tensor group that is there, beside recomputing every block.
    """
    if end.seconds_per_token <= GOOD_ENOUGH * start.seconds_per_token or not end.changes:
        return None
    singles = []
    for name, technique in all_techniques().items():
        if technique.tier not in EVERYTHING or not technique.estimated or name in TIERLESS or WEIGHT.get(name, 0) or not bench.constraints.permits(technique):
            continue
        single = bench.measure(((name, 1),)) if name not in end.ids else None
        if single is not None and single.exact and not single.altered and lowers(single, start) and _quick(single, start):
            singles.append(single)
    grown = start
    for single in sorted(singles, key=lambda c: c.used_bytes):
        wanted = (*grown.changes, *single.changes)
        if bench.fits(grown) or len(grown.changes) == MOST:
            break
        if compatible(grown.ids | single.ids) and bench.constraints.within(len(wanted)):
            tried = bench.measure(wanted)
            if tried is not None and lowers(tried, grown) and _quick(tried, start):
                grown = tried
    if grown is start or not bench.fits(grown):
        return None
    grown = shrink(bench, grown, start, start)
    return grown if cost(grown, start) < cost(end, start) else None


def _quick(c: Candidate, start: Candidate) -> bool:
    return c.seconds_per_token <= GOOD_ENOUGH * start.seconds_per_token
