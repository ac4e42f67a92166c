"""What fewer cards would take, in words: the same in every form of a report."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.planner.fewer import Fewer
from advisor.planner.searching import LINK_BOUND
from advisor.planner.stepping import title
from advisor.planner.words import spoken
from advisor.report import SAME_TIME, Plan
from advisor.units import show

NONE = "No smaller number of these cards holds it, unless something else is learned."
NOT_ASKED = "Fewer cards can be looked for where a run on several cards of one kind fits, as it is or with its plan."


def sentences(plan: Plan) -> list[str]:
    """One for each answer; nothing where it was not asked."""
    if plan.fewer is None:
        return []
    return [sentence(found, first=number == 0) for number, found in enumerate(plan.fewer)] or [NONE]


def sentence(found: Fewer, *, first: bool = True) -> str:
    """``It fits on 2 of the 8 cards with one change (smaller communication buckets). A step of as many samples then takes 3.8 times as long, ...``."""
    unmoved = "" if first or LINK_BOUND & set(found.changes) else ", with nothing more on the host,"
    p = found.run.job.parallel
    kept = " Tensor and pipeline groups are kept." if (p.tensor or 1) * (p.pipeline or 1) > 1 else ""
    edge = " Only the middle of the estimate fits: watch the first steps." if found.tightly else ""
    return (
        f"It fits on {found.cards:,} of the {found.of:,} cards{unmoved} {_changes(found.changes)}. A step of as many samples then takes {_time(found.ratio)}, "
        f"{found.card_hours:.2f} of the card-hours; {show(found.used_bytes)} needed of {show(found.usable_bytes)} usable on each.{edge}{kept}"
    )


def _changes(names: Sequence[str]) -> str:
    if not names:
        return "as it is"
    said = "; ".join(spoken(name, title(name)) for name in names)
    return f"with {'one change' if len(names) == 1 else f'{len(names)} changes'} ({said})"


def _time(ratio: float) -> str:
    if abs(ratio - 1) < SAME_TIME:
        return "as long"
    return f"{ratio:,.1f} times as long" if ratio >= 1.05 else f"{ratio:.2f} of the time"
