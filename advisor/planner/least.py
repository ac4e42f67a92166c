"""The least of a set: no part of it fits.

A search begins with what is free and with what cures the first cause, and adds to them; what it adds may be enough alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from advisor.planner.constraints import NARROWING
from advisor.planner.measuring import Bench, Candidate, Change, technique_of
from advisor.planner.offering import MATTERS
from advisor.planner.searching import LINK_BOUND, cost

FREE = frozenset({"triage", "copies", "fallback"})
EVERY_PART = 6  # changes, up to which every part is looked at: 62 estimates; beyond, one change after the other is left out


def least(bench: Bench, c: Candidate, start: Candidate, kept: frozenset[str], *, tightly: bool) -> Candidate:
    """The cheapest part of ``c`` that fits and of which no part fits, by :func:`~advisor.planner.searching.cost`; ``c`` where all of it is needed.

    ``start``: what times are measured by. ``kept``: what restores the run that was meant stays, whether it is needed or not. So does, beside
    something that waits for the host's link, what is free, exact and still saves: no offload while a copy remains. A layout is one choice.
    """
    if c.laid_out:
        return c
    while True:
        fitting = [part for part in _parts(bench, c, kept) if bench.fits(part, tightly=tightly)]
        fitting = [part for part in fitting if not any(set(other.changes) < set(part.changes) for other in fitting)]
        if not fitting:
            return c
        c = min(fitting, key=lambda part: cost(part, start))


def _parts(bench: Bench, c: Candidate, kept: frozenset[str]) -> Iterator[Candidate]:
    """The proper parts that may fit, the smallest first."""
    count = len(c.changes)
    for size in range(1, count) if count <= EVERY_PART else (count - 1,):
        for changes in combinations(c.changes, size):
            part = bench.measure(changes) if kept & c.ids <= {name for name, _ in changes} else None
            if part is None or part.run.job.hardware != c.run.job.hardware or not bench.may_fit(part):
                continue
            if not any(_remains(bench, part, change) for change in c.changes if change not in changes):
                yield part


def _remains(bench: Bench, part: Candidate, change: Change) -> bool:
    """Whether a copy, or a widening that is as exact to undo, would remain while something moves to the host."""
    if not LINK_BOUND & part.ids or change[0] in NARROWING or technique_of(change).tier not in FREE:
        return False
    restored = bench.measure((*part.changes, change))
    return restored is not None and part.used_bytes - restored.used_bytes > MATTERS * (part.capacity_bytes or 0)
