"""The first change: what cures the most likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from advisor.planner.measuring import Bench, Candidate
from advisor.planner.offering import lowers, lowers_at_most
from advisor.report import Finding
from advisor.techniques import TIERLESS, all_techniques

FREE = frozenset({"triage", "copies", "fallback"})
LATER = frozenset({"hardware"})  # a cure that is bought is never the first


@cache
def _rules() -> dict[str, Any]:
    from advisor.rules import engine

    found = getattr(engine, "all_rules", None) or getattr(engine, "rules", None)
    rules = found() if callable(found) else ()
    return dict(rules) if isinstance(rules, dict) else {r.id: r for r in rules}


def remedies_of(causes: Sequence[Finding | str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """``(tier, remedies)`` of each cause, in the given order."""
    out = []
    for cause in causes:
        if isinstance(cause, str):
            rule = _rules().get(cause)
            if rule is not None:
                out.append((rule.tier, tuple(rule.remedies)))
        else:
            out.append((cause.tier, tuple(cause.remedies)))
    return tuple(out)


def cure(bench: Bench, start: Candidate, causes: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Candidate, frozenset[str], bool]:
    """Apply the first remedy of the first cause that is an action, or that lowers what the run needs.

    Returns the ids of what was applied, and whether it stays in the plan, needed or not: what restores what was meant, is an action, makes room, or
    cures at no cost (exact, and no slower): the cause that was found is then gone. One that only needs less is a way among others.
    """
    for tier, remedies in causes[:1]:
        if tier in LATER:
            continue
        for name in remedies:
            technique = all_techniques().get(name)
            if technique is None or technique.tier in LATER or not bench.constraints.permits(technique):
                continue
            tried = bench.measure(((name, 1),))
            if tried is None:
                continue
            room = (tried.capacity_bytes or 0) > (start.capacity_bytes or 0)
            restored = len(tried.run.deviations) < len(start.run.deviations) or (tier in FREE and tried.peak_bytes <= start.peak_bytes)
            faster = tier == "spare" and tried.seconds_per_token < start.seconds_per_token
            costless = tried.exact and not tried.alters_learning and tried.seconds_per_token <= start.seconds_per_token
            stays = not technique.estimated or room or restored or faster or name in TIERLESS or (costless and lowers(tried, start))
            if stays or lowers(tried, start) or lowers_at_most(name, tried, start):
                return tried, frozenset({name}), stays
    return start, frozenset(), False
