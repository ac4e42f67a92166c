"""When a watched run dies for want of memory: what was so at that moment, and the top cause with its first change under the traceback.

The lines are a note of the exception itself (PEP 678), so they stand under the traceback wherever it is printed: by the
interpreter, a notebook, a logger, the launcher's error file. Where no ``with`` block sees the exception (the callback), the interpreter's last
hook adds the note. The bundle holds facts: counters, shapes, the report; no text of the run and no tensor.
"""

from __future__ import annotations

import json
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from advisor.measurement.watching.finding import Finding
from advisor.units import show

MAX_TRACEBACK = 60_000  # characters, of its end
SEEN = 3  # findings of the watcher that are said again
COUNTERS = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "inactive_split_bytes.all.current", "num_alloc_retries")
_SAYS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def is_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a device or the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error)[:20_000].lower() for word in _SAYS)


def counters() -> dict[str, int]:
    """The CUDA allocator's own figures; empty without a device."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]  # torch ships no types here
        return {}
    stats = torch.cuda.memory_stats()
    return {name: int(stats[name]) for name in COUNTERS if name in stats}


def observe(told: Callable[[dict[str, int]], None]) -> bool:
    """Have ``told`` (a method of what may die first) called by torch at the moment memory runs out, before anything is freed; whether torch can."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or not torch.cuda.is_available():
        return False
    method = weakref.WeakMethod(told)  # torch offers no way to take an observer off again

    def ran_out(device: int, requested: int, total: int, free: int) -> None:  # torch/csrc/cuda/Module.cpp; what it raised would stand for the failure
        with suppress(Exception):
            _tell(device, requested, total, free)

    def _tell(device: int, requested: int, total: int, free: int) -> None:
        if (alive := method()) is not None:
            alive({"device": device, "requested": requested, "total": total, "free": free, **counters()})

    attach(ran_out)
    return True


def explained(error: BaseException, job: Mapping[str, Any], seen: Sequence[Finding], watched: Mapping[str, Any], where: Path | None) -> str | None:
    """The lines to stand under the traceback; ``None`` where it was not memory after all. Writes the bundle to ``where`` (default: here)."""
    from advisor.diagnosis import diagnose_reading
    from advisor.job import JobError, read_job
    from advisor.launching import bundle
    from advisor.reading import read
    from advisor.render import chat
    from advisor.share import link

    texts: list[tuple[str, bytes | str | Path]] = [("traceback.txt", "".join(traceback.format_exception(error))[-MAX_TRACEBACK:])]
    with suppress(JobError):  # a model of a kind that the job file can not say
        texts.append(("watched-job.json", json.dumps(read_job(dict(job)).to_dict())))
    reading = read(texts)
    report = diagnose_reading(reading)
    if report.verdict in ("not-memory", "unreadable"):
        return None
    lines = [f"advisor: {chat.report(report).rstrip()}"]
    lines += [f"Seen while it ran: {f.title}, at {f.where}" for f in sorted(seen, key=lambda f: -f.bytes)[:SEEN]]
    data = bundle.content(report, link(reading.job, reading.evidence).query, {"error": type(error).__name__}) | {"watched": dict(watched)}
    lines.append(bundle.kept(where or bundle.default_path(), data))
    return "\n" + "\n".join(lines)


def facts(step: int, phase: str | None, peaks: Mapping[str, tuple[int, dict[str, int]]], seen: Sequence[Finding], moment: Mapping[str, int]) -> dict[str, Any]:
    """What the watcher knew, for the bundle."""
    return {
        "step": step, "phase": phase, "counters": dict(moment), "findings": [f.to_json() for f in seen],
        "peaks": {name: {"bytes": size, "parts": parts, "says": show(size)} for name, (size, parts) in peaks.items()},
    }  # fmt: skip


class LastHook:
    """Stands before ``sys.excepthook`` while a watch runs that no ``with`` block ends: it lets the exception be noted, then hands it on."""

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        self._note, self._before = note, sys.excepthook
        sys.excepthook = self

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Note it, then do what would have been done."""
        self._note(error)
        self._before(kind, error, trace)

    def remove(self) -> None:
        """Put back what was there, where nobody has put another on top."""
        if sys.excepthook is self:
            sys.excepthook = self._before
        self._note = lambda _: None
