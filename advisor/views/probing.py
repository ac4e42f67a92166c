"""A probe started from a page: why it cannot be, the button, its progress, and the result beside the estimate."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import streamlit as st
from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.render import words
from advisor.run import Run
from advisor.share import link
from advisor.simulation import CannotProbe, Probed
from advisor.views.probed import show_probed
from advisor.views.probes import Going, queue
from advisor.views.words import plain

LIMITS = {"1 minute": 60, "3 minutes": 180, "10 minutes": 600}
MOST_WAITING = 8  # of all sessions together: each may take minutes, and a reader who would wait an hour is told so at once
KEPT = 4  # results a session keeps, by the link of the run
HOW_TO_GET_IT = "`make probe` in a checkout, or `pip install 'training-memory-advisor[probe]'`, then start the pages again"


def why_not(run: Run) -> str | None:
    """Why no probe can be started here, as Markdown; ``None`` where one can."""
    if os.environ.get("ADVISOR_PROBE", "").lower() in ("0", "off", "no", "false"):
        return "Probing is switched off on this server (ADVISOR_PROBE). On your own machine: take the job file and run `advisor probe job.yaml`."
    if find_spec("torch") is None or find_spec("transformers") is None:
        return (
            f"The probe runs the model's own code, for which torch and transformers are needed, and they are not installed here. To get them: {HOW_TO_GET_IT}."
        )
    if run.missing:
        return f"Not known, and the probe needs it: {plain(', '.join(words.field(path).lower() for path in run.missing))}."
    return None


def as_set(run: Run) -> Run:
    """The run as the probe runs it: the settings that are in effect, without what the causes add beside them."""
    return replace(run, job=run.effective, deviations=())


def show_probe(run: Run, key: str, *, primary: bool = False) -> None:
    """The section: what it does, a button, progress, and the result beside the estimate. ``primary``: it is what the page is for."""
    if (reason := why_not(run)) is not None:
        st.markdown(f":material/info: {reason}")
        return
    name = link(run.job, Evidence()).query
    kept: dict[str, Going] = st.session_state.setdefault("probes", {})
    if name not in kept and (found := queue().find(name)) is not None:  # the page was loaded anew: its session was another
        kept[name] = found
    going = kept.get(name)
    if going is None or (going.done and (going.cancelled or going.future is None)):
        if going is not None:
            st.markdown("The probe was cancelled; nothing is left of it.")
        _start(run, name, kept, key, primary=primary)
    elif not going.done:
        _progress(going, key)
    else:
        _result(going, kept, name, key)


def probed(run: Run) -> Probed | None:
    """What a probe of this run saw in this session, where one has ended."""
    going: Going | None = (st.session_state.get("probes") or {}).get(link(run.job, Evidence()).query)
    return going.future.result() if going is not None and going.succeeded and going.future is not None else None


def _start(run: Run, name: str, kept: dict[str, Going], key: str, *, primary: bool) -> None:
    st.markdown("Runs the real model code, autograd and optimizer on this server without a GPU and without the weights, and counts every tensor of a step.")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        limit = st.segmented_control("Time limit", list(LIMITS), default="3 minutes", required=True, key=f"{key}:limit")
        st.button(
            "Probe this run",
            key=f"{key}:go",
            icon=":material/labs:",
            type="primary" if primary else "secondary",
            on_click=_go,
            args=(run, name, kept, LIMITS[limit or "3 minutes"]),
        )
    st.caption("Usually between 20 seconds and two minutes. You can go on reading, and cancel it at any time.")


def _go(run: Run, name: str, kept: dict[str, Going], seconds: int) -> None:
    line = queue()
    if line.waiting >= MOST_WAITING:
        st.session_state["complaint"] = f"{line.waiting} probes are waiting on this server; try again in some minutes, or run `advisor probe` yourself."
        return
    going = Going(as_set(run), seconds, name)
    line.add(going)
    for old in list(kept)[: max(0, len(kept) + 1 - KEPT)]:
        if not (dropped := kept.pop(old)).done:
            dropped.cancel()
    kept[name] = going


@st.fragment(run_every=1.0)
def _progress(going: Going, key: str) -> None:
    if going.done:
        st.rerun()
    ahead = queue().ahead_of(going)
    if going.started is None:
        says = f"Waiting for a free worker, {ahead} before this one" if ahead else "Starting"
    else:
        steps = list(going.handle.said)
        says = f"{(steps[-1] if steps else 'starting').capitalize()}: {time.monotonic() - going.started:.0f} s of at most {going.seconds} s"
    st.status(plain(says), state="running")
    st.button("Cancel the probe", key=f"{key}:cancel", icon=":material/cancel:", on_click=going.cancel)


def _result(going: Going, kept: dict[str, Going], name: str, key: str) -> None:
    assert going.future is not None
    error = going.future.exception()
    if error is not None:
        said = str(error) if isinstance(error, CannotProbe) else "the probe failed in a way that nobody foresaw"
        st.warning(f"{plain(said[:1].upper() + said[1:])}. The estimate above stands.", title="Not probed", icon=":material/info:")
    else:
        show_probed(going.run, going.future.result(), going.frames, key)
    st.button("Probe again", key=f"{key}:again", icon=":material/replay:", on_click=_forget, args=(kept, name))


def _forget(kept: dict[str, Going], name: str) -> None:
    kept.pop(name, None)
    queue().forget(name)
