"""A measurement on this machine's own GPU, started from a page: one child process, watched, cancelled and found again like a probe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st
from msgspec import Struct, field

from advisor.job import Job
from advisor.views.words import plain
from advisor.views.worker import pool

SECONDS = 600
KEPT = "measuring-here"
MOST_HELD = 8  # results that no page has come back for


def local_gpu() -> bool:
    """Whether a measurement can be started here: a GPU, torch, and not switched off (ADVISOR_MEASURE)."""
    if os.environ.get("ADVISOR_MEASURE", "").lower() in ("0", "off", "no", "false") or find_spec("torch") is None:
        return False
    return shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists()


def command(job: Path, answer: Path) -> list[str]:
    """The child's command line: our own module, nothing of the user's but the job's settings."""
    return [sys.executable, "-m", "advisor.measurement", str(job), "--out", str(answer), "--device", "cuda"]  # a GPU is here: the CPU is not what was asked for


class Asked(Struct, frozen=True):
    """What is measured: the job, which run it is (the query of its link), and whether that has the ticked changes."""

    job: Job
    of: str
    changed: bool


class Measuring(Struct):
    """One measurement, from the click to its end."""

    asked: Asked
    said: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    started: float | None = None
    cancelled: bool = False
    future: Future[str] | None = None

    def work(self) -> str:
        """In the worker's thread: no page is touched here. Returns the answer's JSON."""
        self.started = time.monotonic()
        with TemporaryDirectory() as folder:
            source, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
            source.write_text(json.dumps(self.asked.job.to_dict(), default=str), encoding="utf-8")
            if self.cancelled:
                return ""
            errors = Path(folder) / "said.txt"
            with errors.open("w", encoding="utf-8") as said:
                self.process = subprocess.Popen(command(source, answer), stdout=subprocess.DEVNULL, stderr=said, text=True)  # noqa: S603  our own module
            try:
                while self.process.poll() is None:
                    if self.cancelled or time.monotonic() - self.started > SECONDS:
                        self.process.kill()
                    time.sleep(0.1)
                    self.said = errors.read_text(encoding="utf-8", errors="replace")[-4000:].splitlines()
            finally:
                self.process.kill()
                self.process.wait()
            if answer.is_file():
                return answer.read_text(encoding="utf-8")
            why = (
                "it took too long"
                if time.monotonic() - self.started > SECONDS
                else " / ".join(self.said[-3:]) or "the measuring process ended without an answer"
            )
            return json.dumps({"outcome": "not-measured", "error": why})

    def cancel(self) -> None:
        """End it, wherever it is."""
        self.cancelled = True
        if self.future is not None:
            self.future.cancel()

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.future is None or self.future.done()


@st.cache_resource(show_spinner=False)
def under_way() -> list[Measuring]:
    """What was started and not yet taken by a page, for one that is loaded anew: by the link of its run, which holds settings only."""
    return []


def _found(of: str) -> Measuring | None:
    return next((m for m in reversed(under_way()) if m.asked.of == of and not m.cancelled), None)


def _gone(going: Measuring) -> None:
    if going in under_way():
        under_way().remove(going)


def show_local(asked: Asked, key: str, take: Callable[[str, Asked], None]) -> None:
    """A button, progress, and at the end ``take`` with the answer's JSON and the run that it is of: other changes may be ticked by then."""
    going: Measuring | None = st.session_state.get(KEPT)
    if going is None and (going := _found(asked.of)) is not None:
        st.session_state[KEPT] = going
    if going is not None and going.done:
        del st.session_state[KEPT]
        _gone(going)
        if going.cancelled or going.future is None or going.future.cancelled():
            st.markdown("The measurement was cancelled; nothing is left of it.")
        else:
            take(going.future.result(), going.asked)
            st.rerun()
        going = None
    if going is None:
        st.markdown("Real steps on this machine's GPU with random weights and tokens: no model is downloaded and no data is needed. It takes about a minute.")
        st.button("Measure it here", key=f"{key}:go", icon=":material/straighten:", on_click=_go, args=(asked,))
    else:
        if going.asked.of != asked.of:
            st.markdown("A measurement of the run as it was ticked before is going on. It is kept for that run.")
        _progress(going, key)


def _go(asked: Asked) -> None:
    going = Measuring(asked)
    going.future = pool().submit(going.work)
    under_way().append(going)
    del under_way()[:-MOST_HELD]
    st.session_state[KEPT] = going


@st.fragment(run_every=1.0)
def _progress(going: Measuring, key: str) -> None:
    if going.done:
        st.rerun()
    if going.started is None:
        says = "Waiting for the probe or measurement before it"
    else:
        last = going.said[-1].removeprefix("measure: ") if going.said else "starting"
        says = f"{last[:1].upper()}{last[1:160]}: {time.monotonic() - going.started:.0f} s of at most {SECONDS} s"
    st.status(plain(says), state="running")
    st.button("Cancel the measurement", key=f"{key}:cancel", icon=":material/cancel:", on_click=going.cancel)
