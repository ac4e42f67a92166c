"""Which changes are ticked, as the page and the link know it, and whether what they come to fits."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from advisor.ledger import Ledger
from advisor.planner.together import Together, apply_together
from advisor.report import Plan, Report
from advisor.units import show
from advisor.verdict import needed
from advisor.views.kept import kept


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


def re_estimated(report: Report) -> Together | None:
    """What the ticked changes come to; ``None`` where the run is not known or cannot be estimated."""
    run, chosen = report.run, ticked(report.plan)
    return None if run is None else kept("together", (run, report.plan, chosen), lambda: apply_together(run, chosen, report.plan))


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
