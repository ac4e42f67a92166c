"""Prove it: the run as it was, or with what is ticked, probed without a GPU or measured on one."""

from __future__ import annotations

import streamlit as st

from advisor.compare import CompareError, Side, of_job, of_json
from advisor.job import JobError
from advisor.render import words
from advisor.render.json import of_ledger
from advisor.report import Report
from advisor.run import Run
from advisor.verdict import judge
from advisor.views.measured import KEPT, Found, query_of, take, with_ticks
from advisor.views.measuring import MAX_BYTES, of_text, show_measured
from advisor.views.measuring_here import Asked, local_gpu, show_local
from advisor.views.probing import as_set, probed, show_probe
from advisor.views.together import ticked
from advisor.views.words import plain

AS_IT_WAS, WITH_TICKS = "as it was", "with what is ticked"


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


def _chosen(report: Report) -> tuple[Run, bool]:
    """The run to prove: with what is ticked, where something is and it can be estimated."""
    assert report.run is not None
    changed = with_ticks(report)
    if changed is None:
        return report.run, False
    count = len(ticked(report.plan))
    which = st.segmented_control(
        "Which run", [WITH_TICKS, AS_IT_WAS], default=WITH_TICKS, required=True, key="prove-which", format_func=lambda text: _label(text, count)
    )
    return (report.run, False) if which == AS_IT_WAS else (changed, True)


def _label(which: str, count: int) -> str:
    return f"With the {count} ticked change{'s' if count > 1 else ''}" if which == WITH_TICKS else "As it was"


def _measure(run: Run, *, changed: bool) -> None:
    """A button where a GPU is here; else what to run, and where to drop the result. Then the result beside the estimate and the probe."""
    job = as_set(run).job
    of = query_of(run)
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
    take(text, asked.of, changed=asked.changed)
    if asked.of in (st.session_state.get(KEPT) or {}):
        which = "with the changes that were ticked when it began" if asked.changed else "as it was"
        st.session_state["prove-ended"] = f"The run {which} is measured. The figure stands with that run, under the verdict and here."


def _dropped(of: str, *, changed: bool) -> None:
    file = st.session_state.get("prove-file")
    if file is not None:
        take(file.getvalue(), of, changed=changed)


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
