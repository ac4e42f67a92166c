"""What was measured of a report's runs, in this session or by whoever shared its link: kept, checked to be of that run, and said beside the estimate."""

from __future__ import annotations

import streamlit as st
from msgspec import Struct

from advisor.compare import CompareError, of_job
from advisor.evidence import Evidence
from advisor.job import Job, JobError
from advisor.render import words
from advisor.render.measured import Figure
from advisor.report import Report
from advisor.run import Run
from advisor.share import Measured, link, open_link
from advisor.share.measured import MAX_DEVICE
from advisor.views.kept import kept
from advisor.views.measuring import of_text
from advisor.views.probing import as_set
from advisor.views.together import re_estimated, ticked
from advisor.views.words import plain

KEPT = "measured"  # what this session measured: {the query of the run's link: Found}, the latest last
MOST_KEPT = 8
TOLD = "measured-told"  # what the link that was opened says of it, what it ticked and of which run: (Measured, techniques, query)
DECIDING = ("model.name", "batch.micro_batch", "batch.seq_len", "method.kind", "precision.weights", "optimizer.name", "activations.checkpointing")
WHERE_IT_RAN = frozenset({"version", "framework", "hardware", "load"})  # sections that measuring itself settles


class Found(Struct, frozen=True):
    """A measurement's JSON as text, which run it is of, and its figure for the link."""

    text: str | bytes
    of: str  # the query of the run's link
    told: Measured


def measured_now(report: Report) -> Measured | None:
    """What was measured of this report's run, with the changes that are ticked now, here or by whoever shared the link."""
    if report.run is None:
        return None
    here: dict[str, Found] = st.session_state.get(KEPT) or {}
    for run in (with_ticks(report), report.run) if here else ():
        if run is not None and (found := here.get(query_of(run))) is not None:
            return found.told
    told, chosen, of = st.session_state.get(TOLD) or (None, (), "")
    other = of != query_of(report.run)  # another page of this session may show another report
    return None if told is None or other or (told.changed and chosen != ticked(report.plan)) else told


def measured_figure(report: Report) -> Figure | None:
    """The same with the estimate of that run beside it."""
    found = measured_now(report)
    run = None if found is None else with_ticks(report) if found.changed else report.run
    if found is None or run is None:
        return None
    estimated = kept("estimate beside", (run,), lambda: _estimate(run))
    return Figure(found.bytes, found.device, found.changed, found.software, estimated, told=not st.session_state.get(KEPT))


def show_told(report: Report) -> None:
    """The measured figure beside the estimate, right under the verdict."""
    if (found := measured_figure(report)) is not None:
        st.markdown(f":material/straighten: {plain(found.sentence()).replace('Measured', '**Measured**', 1)}")


def tell(report: Report, told: Measured | None) -> None:
    """What the link of this report says was measured."""
    st.session_state[TOLD] = (told, ticked(report.plan), "" if report.run is None else query_of(report.run))


def forget() -> None:
    """Another report: nothing was measured of it."""
    st.session_state.pop(KEPT, None)
    st.session_state.pop(TOLD, None)


def _estimate(run: Run) -> int | None:
    try:
        return of_job("estimate", as_set(run).job).totals.get("max_allocated")
    except (CompareError, JobError):
        return None


def take(text: str | bytes, of: str, *, changed: bool) -> None:
    """Keep a result, or say what is wrong with it."""
    side, job, data, complaint = of_text(text)
    if side is None or job is None:
        st.session_state["prove-complaint"] = complaint
        return
    if other := _differing(of, job):
        st.session_state["prove-complaint"] = f"This was measured with another {other}. The page Measure shows any result beside its own estimate."
        return
    if not side.totals.get("max_allocated"):
        st.session_state["prove-complaint"] = "This holds no measured peak (totals.max_allocated)."
        return
    st.session_state.pop(TOLD, None)
    device = str(data.get("device", "a device that was not named"))[:MAX_DEVICE]
    software = tuple(f"{name} {version}" for name, version in side.software.items())
    here: dict[str, Found] = st.session_state.setdefault(KEPT, {})
    here.pop(of, None)
    here[of] = Found(text, of, Measured(side.totals["max_allocated"], device, changed, software))
    for old in list(here)[:-MOST_KEPT]:
        del here[old]


def _differing(of: str, measured: Job) -> str:
    """The setting in which the measured job is not the run's; what measuring itself adds (versions, the device's own card) is none of these."""
    told, ran = open_link(of).job.to_dict(), measured.to_dict()
    for section in sorted(set(told) & set(ran) - WHERE_IT_RAN):
        mine, other = told[section], ran[section]
        if not isinstance(mine, dict) or not isinstance(other, dict):
            if mine != other:
                return words.field(section).lower()
            continue
        for name, value in mine.items():
            if value is not None and name in other and other[name] != value:
                return words.field(f"{section}.{name}").lower()
    return next((words.field(path).lower() for path in DECIDING if open_link(of).job.get(path) not in (None, measured.get(path))), "")


def with_ticks(report: Report) -> Run | None:
    """The run with what is ticked; ``None`` where nothing is, or it cannot be estimated together."""
    together = re_estimated(report) if ticked(report.plan) else None
    return None if together is None else together.run


def query_of(run: Run) -> str:
    """By which a run is known here: the query of its link, as it is set."""
    return kept("query", (run,), lambda: link(as_set(run).job, Evidence()).query)
