"""The first change: what cures the most likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from advisor.planner.constraints import ORDER
from advisor.planner.measuring import Bench, Candidate
from advisor.report import Finding
from advisor.techniques import TIERLESS, all_techniques

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


def cure(bench: Bench, start: Candidate, causes: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Candidate, frozenset[str]]:
    """Apply the first remedy of the first cause that is an action, or that lowers what the run needs. Returns the ids of what was applied."""
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
            lowers = tried.peak_bytes < start.peak_bytes or tried.used_bytes < start.used_bytes
            faster = tier == "spare" and tried.seconds_per_token < start.seconds_per_token
            if not technique.estimated or room or lowers or faster or name in TIERLESS:
                return tried, frozenset({name})
    return start, frozenset()


def tier_of(name: str, tier: str | None) -> str:
    """The tier under which a change is shown: that of the cause where the change belongs to no tier of its own."""
    own = all_techniques()[name].tier
    return tier if name in TIERLESS and tier is not None and tier in ORDER else own
