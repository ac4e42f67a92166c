"""Every legal set of up to four changes beside the one that a search chose, on spaces that are small enough to try them all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from advisor import planning
from advisor.planner import stages
from advisor.planner.constraints import compatible
from advisor.planner.least import FREE
from advisor.planner.measuring import Bench, Candidate, Change, technique_of
from advisor.planner.offering import options
from advisor.planner.searching import SAME_TIME, adding, cost
from advisor.run import Run

MOST_OPTIONS = 20  # 6,195 sets of up to four
DEEP = 14  # options, from which on sets of four are left out


def missed(run: Run, patch: pytest.MonkeyPatch) -> tuple[int, str | None]:
    """How many sets were tried, and the first that is cheaper than the plan's by more than times can tell; 0: nothing was searched."""
    seen: dict[str, Any] = {}
    search = stages.search

    def watched(bench: Bench, base: Candidate, start: Candidate, tiers: frozenset[str], **how: Any) -> list[Candidate]:
        found = search(bench, base, start, tiers, **how)
        if found:
            seen.update(bench=bench, base=base, start=start, tiers=tiers, chosen=found[0], **how)
        return found

    with patch.context() as patched:
        patched.setattr(stages, "search", watched)
        made = planning.plan(run)
    if not seen or not made.fits or made.steps[-1].tier == "hardware":
        return 0, None
    bench, base, start = seen["bench"], seen["base"], seen["start"]
    tightly = bool(seen.get("tightly"))
    choices = options(bench, base, seen["tiers"], heavy=seen["heavy"], altering=seen["altering"])
    if len(choices) > MOST_OPTIONS:
        return 0, None
    least, tried = cost(seen["chosen"], start), 0
    for candidate in _sets(bench, base, choices):
        tried += 1
        if not bench.may_fit(candidate) or cost(candidate, start) >= least:
            continue
        altered, time = cost(candidate, start)[:2]
        if (altered < least[0] or time < least[1] - SAME_TIME - 1e-9) and _legal(bench, candidate, tightly=tightly):
            return tried, f"{candidate.changes} at {cost(candidate, start)}, not {seen['chosen'].changes} at {least}"
    return tried, None


def _sets(bench: Bench, base: Candidate, choices: list[Change]) -> Iterator[Candidate]:
    for size in (1, 2, 3, 4) if len(choices) <= DEEP else (1, 2, 3):
        for chosen in combinations(choices, size):
            names = frozenset(name for name, _ in chosen)
            if len(names) == size and compatible(names | base.ids):
                candidate = bench.measure((*base.changes, *chosen))
                if candidate is not None:
                    yield candidate


def _legal(bench: Bench, c: Candidate, *, tightly: bool) -> bool:
    """It fits, no change makes it need more, and no change beyond the base can be left out."""
    if not bench.fits(c, tightly=tightly) or adding(bench, c, bench.measure(()) or c) is not None:
        return False
    lesser = (bench.measure(tuple(x for x in c.changes if x != change)) for change in c.changes if technique_of(change).tier not in FREE)
    return not any(less is not None and bench.fits(less, tightly=tightly) for less in lesser)
