"""A probe started from a page: one child process at a time, watched, cancelled, and found again by the run's link when the page is loaded anew."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st
from msgspec import Struct, field
from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.render import words
from advisor.render.lifetimes import Frame, frames
from advisor.run import Run
from advisor.share import link
from advisor.simulation import CannotProbe, Probed, probe
from advisor.simulation.probing import Handle
from advisor.views.probed import show_probed
from advisor.views.words import plain
from advisor.views.worker import pool

LIMITS = {"1 minute": 60, "3 minutes": 180, "10 minutes": 600}
MOST_WAITING = 8  # of all sessions together: each may take minutes, and a reader who would wait an hour is told so at once
STREAMED_PARAMETERS = 4_000_000_000  # a larger model is probed by a few of its layers, for which there is no stream
KEPT = 4  # results a session keeps, by the link of the run
REMEMBERED = 16  # results the server keeps, for a page that is loaded anew: a link holds settings only, so who has it may see what they come to
HOW_TO_GET_IT = "`make probe` in a checkout, or `pip install 'training-memory-advisor[probe]'`, then start the pages again"


class Going(Struct):
    """One probe of one run, from the click to its end."""

    run: Run
    seconds: int
    name: str  # the query of the run's link
    handle: Handle = field(default_factory=Handle)
    asked: float = field(default_factory=time.monotonic)
    started: float | None = None
    cancelled: bool = False
    future: Future[Probed] | None = None
    frames: tuple[Frame, ...] = ()  # the step to scrub through; empty where a few layers stood for all

    def work(self) -> Probed:
        """In the worker's thread: no page is touched here."""
        self.started = time.monotonic()
        size = self.run.architecture.parameters if self.run.architecture is not None else 0
        if size > STREAMED_PARAMETERS:
            return probe(self.run, timeout=self.seconds, say=self._said, handle=self.handle)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "timeline.json"
            found = probe(self.run, timeout=self.seconds, say=self._said, handle=self.handle, timeline=file)
            if file.is_file():
                self.frames = frames(json.loads(file.read_text(encoding="utf-8")))
            return found

    def _said(self, _: str) -> None:
        if self.cancelled:  # cancelled in the moment before the child was there
            self.handle.cancel()

    def cancel(self) -> None:
        """End it, wherever it is."""
        self.cancelled = True
        if self.future is None or not self.future.cancel():
            self.handle.cancel()

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.future is None or self.future.done()

    @property
    def succeeded(self) -> bool:
        """Whether it has come to a result."""
        return not self.cancelled and self.future is not None and self.future.done() and not self.future.cancelled() and self.future.exception() is None


class Queue(Struct):
    """The one worker of the server, who waits for it, and what it found last."""

    pool: ThreadPoolExecutor
    going: list[Going] = field(default_factory=list)

    def ahead_of(self, one: Going) -> int:
        """How many come first."""
        return sum(not g.done and g.asked < one.asked for g in self.going)

    @property
    def waiting(self) -> int:
        """How many are not done."""
        return sum(not g.done for g in self.going)

    def add(self, one: Going) -> None:
        """One more at the end; of those that are done the latest stay, without what came to nothing."""
        done = [g for g in self.going if g.done and g.succeeded][-REMEMBERED:]
        self.going = [*done, *(g for g in self.going if not g.done), one]
        one.future = self.pool.submit(one.work)

    def find(self, name: str) -> Going | None:
        """The latest of a run that is under way or has come to a result, whichever session asked for it."""
        return next((g for g in reversed(self.going) if g.name == name and (g.succeeded if g.done else not g.cancelled)), None)

    def forget(self, name: str) -> None:
        """Without the results of a run."""
        self.going = [g for g in self.going if g.name != name or not g.done]


@st.cache_resource(show_spinner=False)
def queue() -> Queue:
    """One probe at a time: each takes a core and some gigabytes of the server."""
    return Queue(pool())


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
