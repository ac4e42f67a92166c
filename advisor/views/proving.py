"""Prove it: the run as it was, or with what is ticked, probed without a GPU or measured on one; and what was measured, on the report and in its link."""

from __future__ import annotations

import streamlit as st
from msgspec import Struct

from advisor.compare import CompareError, Side, of_job, of_json
from advisor.evidence import Evidence
from advisor.job import Job, JobError
from advisor.render import words
from advisor.render.json import of_ledger
from advisor.render.measured import Figure
from advisor.report import Report
from advisor.run import Run
from advisor.share import Measured, link, open_link
from advisor.share.measured import MAX_DEVICE
from advisor.verdict import judge
from advisor.views.kept import kept
from advisor.views.measuring import MAX_BYTES, of_text, show_measured
from advisor.views.measuring_here import Asked, local_gpu, show_local
from advisor.views.probing import as_set, probed, show_probe
from advisor.views.together import re_estimated, ticked
from advisor.views.words import plain

KEPT = "measured"  # what this session measured: {the query of the run's link: Found}, the latest last
MOST_KEPT = 8
TOLD = "measured-told"  # what the link that was opened says of it, what it ticked and of which run: (Measured, techniques, query)
DECIDING = ("model.name", "batch.micro_batch", "batch.seq_len", "method.kind", "precision.weights", "optimizer.name", "activations.checkpointing")
WHERE_IT_RAN = frozenset({"version", "framework", "hardware", "load"})  # sections that measuring itself settles
AS_IT_WAS, WITH_TICKS = "as it was", "with what is ticked"


class Found(Struct, frozen=True):
    """A measurement's JSON as text, which run it is of, and its figure for the link."""

    text: str | bytes
    of: str  # the query of the run's link
    told: Measured


def show_proof(report: Report) -> None:
    """The section under the plan."""
    assert report.run is not None
    st.header("Prove it")
    run, changed = _chosen(report)
    without, on_card = st.tabs(["Probe: without a GPU", "Measure: on the card"], on_change="rerun", key="prove")
    if without.open:
        with without:
            show_probe(run, "diagnose-probe")
    if on_card.open:
        with on_card:
            _measure(run, changed=changed)


def measured_now(report: Report) -> Measured | None:
    """What was measured of this report's run, with the changes that are ticked now, here or by whoever shared the link."""
    if report.run is None:
        return None
    here: dict[str, Found] = st.session_state.get(KEPT) or {}
    for run in (_with_ticks(report), report.run) if here else ():
        if run is not None and (found := here.get(_query(run))) is not None:
            return found.told
    told, chosen, of = st.session_state.get(TOLD) or (None, (), "")
    other = of != _query(report.run)  # another page of this session may show another report
    return None if told is None or other or (told.changed and chosen != ticked(report.plan)) else told


def measured_figure(report: Report) -> Figure | None:
    """The same with the estimate of that run beside it."""
    found = measured_now(report)
    run = None if found is None else _with_ticks(report) if found.changed else report.run
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
    st.session_state[TOLD] = (told, ticked(report.plan), "" if report.run is None else _query(report.run))


def forget() -> None:
    """Another report: nothing was measured of it."""
    st.session_state.pop(KEPT, None)
    st.session_state.pop(TOLD, None)


def _estimate(run: Run) -> int | None:
    try:
        return of_job("estimate", as_set(run).job).totals.get("max_allocated")
    except (CompareError, JobError):
        return None


def _chosen(report: Report) -> tuple[Run, bool]:
    """The run to prove: with what is ticked, where something is and it can be estimated."""
    assert report.run is not None
    changed = _with_ticks(report)
    if changed is None:
        return report.run, False
    count = len(ticked(report.plan))
    which = st.segmented_control(
        "Which run", [WITH_TICKS, AS_IT_WAS], default=WITH_TICKS, required=True, key="prove-which", format_func=lambda text: _label(text, count)
    )
    return (report.run, False) if which == AS_IT_WAS else (changed, True)


def _label(which: str, count: int) -> str:
    return f"With the {count} ticked change{'s' if count > 1 else ''}" if which == WITH_TICKS else "As it was"


def _with_ticks(report: Report) -> Run | None:
    together = re_estimated(report) if ticked(report.plan) else None
    return None if together is None else together.run


def _query(run: Run) -> str:
    return kept("query", (run,), lambda: link(as_set(run).job, Evidence()).query)


def _measure(run: Run, *, changed: bool) -> None:
    """A button where a GPU is here; else what to run, and where to drop the result. Then the result beside the estimate and the probe."""
    job = as_set(run).job
    of = _query(run)
    if local_gpu():
        show_local(Asked(job, of, changed), "prove-here", _ended)
    else:
        st.markdown("On the machine with the GPU, beside the job file. Weights and tokens are random: no model is downloaded and no data is needed.")
        st.download_button("Job file", job.to_yaml(), "job.yaml", "application/yaml", on_click="ignore", icon=":material/settings:", key="prove-job")
        st.code("pip install 'training-memory-advisor[probe]'\nadvisor validate job.yaml --json > measured.json", language=None, wrap_lines=True)
    st.file_uploader(
        "Bring measured.json back",
        type=["json", "txt"],
        key="prove-file",
        max_upload_size=MAX_BYTES // 1024**2,
        on_change=lambda: _dropped(of, changed=changed),
        help="The report, its link and what is saved of it then say what was measured.",
    )
    if complaint := st.session_state.pop("prove-complaint", None):
        st.warning(plain(complaint), icon=":material/info:")
    if said := st.session_state.pop("prove-ended", None):
        st.markdown(f":material/check_circle: {said}")
    found: Found | None = (st.session_state.get(KEPT) or {}).get(of)
    if found is not None:
        _beside(run, found)


def _ended(text: str, asked: Asked) -> None:
    """A measurement of this machine belongs to the run that it was started of, whatever is ticked now."""
    _take(text, asked.of, changed=asked.changed)
    if asked.of in (st.session_state.get(KEPT) or {}):
        which = "with the changes that were ticked when it began" if asked.changed else "as it was"
        st.session_state["prove-ended"] = f"The run {which} is measured. The figure stands with that run, under the verdict and here."


def _dropped(of: str, *, changed: bool) -> None:
    file = st.session_state.get("prove-file")
    if file is not None:
        _take(file.getvalue(), of, changed=changed)


def _take(text: str | bytes, of: str, *, changed: bool) -> None:
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


def _beside(run: Run, found: Found) -> None:
    measured, _, data, _ = of_text(found.text)
    if measured is None:
        return
    sides: list[Side] = []
    try:
        sides.append(of_job("estimate", as_set(run).job))
    except (CompareError, JobError) as error:
        st.caption(plain(error))
    if (seen := probed(run)) is not None:
        sides.append(of_json("probe", of_ledger(run, seen.ledger, *judge(run, seen.ledger))))
    show_measured([*sides, measured], data)
    st.caption(f"Each column is at its own largest moment; {words.KINDS['measured']}.")
