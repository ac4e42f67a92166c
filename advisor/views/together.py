"""Which changes are ticked, as the page and the link know it, and what they come to together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import streamlit as st

from advisor.ledger import Ledger
from advisor.report import Plan, Report
from advisor.run import Run
from advisor.units import show
from advisor.verdict import needed


@dataclass(frozen=True)
class Together:
    """Several changes applied one after the other: the run, its ledger, the ratio of step times, and what could not be applied."""

    run: Run
    ledger: Ledger
    step_time_ratio: float | None
    refused: tuple[tuple[str, str], ...]


def apply_together(run: Run, techniques: Sequence[str]) -> Together | None:
    """The run with all of the techniques, in the order given; ``None`` where it cannot be estimated."""
    from advisor.arithmetic import CannotEstimate, estimate
    from advisor.job import JobError
    from advisor.techniques import NotApplicable, all_techniques

    changed, refused, known = run, [], all_techniques()
    for name in techniques:
        if name not in known or not known[name].estimated:
            continue
        try:
            result = known[name].apply(changed)
        except JobError as error:
            result = NotApplicable(str(error))
        if isinstance(result, NotApplicable):
            refused.append((name, result.reason))
        else:
            changed = result
    try:
        ledger = estimate(changed)
    except CannotEstimate:
        return None
    return Together(changed, ledger, _ratio(run, changed), tuple(refused))


def _ratio(before: Run, after: Run) -> float | None:
    """Time of the same number of tokens, after over before: a smaller batch takes more steps."""
    from advisor.speed import step_time

    first = step_time(before).seconds_per_token
    return step_time(after).seconds_per_token / first if first else None


def room(ledger: Ledger, usable: int) -> tuple[str, str]:
    """Whether it fits, in the words that the plan uses, and an icon: (sentence, icon)."""
    need = needed(ledger)
    if need.expected > usable:
        return f"Does not fit, {show(need.expected - usable)} over", "error"
    left = show(usable - need.expected)
    if ledger.totals()["device_used"].high <= usable:
        return f"Fits, {left} left", "check_circle"
    return f"Fits by the estimate, {left} left; by the high end of its range it would not", "warning"


def key(technique: str) -> str:
    """Under which a tick is kept."""
    return f"tick:{technique}"


def tickable(plan: Plan) -> tuple[str, ...]:
    """The techniques of the plan and beside it that have an estimate, in the order in which they are shown."""
    return tuple(dict.fromkeys(s.technique for s in (*plan.steps, *plan.alternatives) if s.estimated))


def planned(plan: Plan) -> tuple[str, ...]:
    """What is ticked at first: the plan."""
    return tuple(s.technique for s in plan.steps if s.estimated)


def ticked(plan: Plan) -> tuple[str, ...]:
    """What is ticked now."""
    first = planned(plan)
    return tuple(t for t in tickable(plan) if st.session_state.get(key(t), t in first))


def tick(plan: Plan, chosen: Iterable[str]) -> None:
    """Tick these and no others: what a link says."""
    wanted = set(chosen)
    for technique in tickable(plan):
        st.session_state[key(technique)] = technique in wanted


def untouched() -> None:
    """Forget what was ticked on another report."""
    for name in [k for k in st.session_state if str(k).startswith("tick:")]:
        del st.session_state[name]


def ticks_to_share(report: Report) -> tuple[str, ...] | None:
    """What a link must say of the ticks; ``None`` where the plan stands as it was made."""
    now = ticked(report.plan)
    return None if now == planned(report.plan) else now
