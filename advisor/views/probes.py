"""Probes under way: one child process at a time for the whole server, watched, cancelled, and found again by the run's link."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st
from msgspec import Struct, field

from advisor.render.lifetimes import Frame, frames
from advisor.run import Run
from advisor.simulation import Probed, probe
from advisor.simulation.probing import Handle
from advisor.views.worker import pool

STREAMED_PARAMETERS = 4_000_000_000  # a larger model is probed by a few of its layers, for which there is no stream
REMEMBERED = 16  # results the server keeps, for a page that is loaded anew: a link holds settings only, so who has it may see what they come to


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
