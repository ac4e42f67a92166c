"""A snapshot, summarised in a process of its own with limits on memory and time; what goes wrong there becomes a sentence here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec import Struct

from advisor.reading.snapshot.opcodes import RefusedError
from advisor.units import GIB, MIB, show, show_time

FILE_BYTES = GIB  # of a file, on the command line
BYTES = 100 * MIB  # of what comes as bytes: an upload on the page
FILE_MEMORY, MEMORY = 6 * GIB, 3 * GIB  # address space of the child; reading takes about ten times a pickle's size
FILE_SECONDS, SECONDS = 120, 40  # processor time; 500 MB take some 20 s
SUMMARY_BYTES = 4 * MIB
REMEMBERED = 16  # summaries of uploads: the page reads the same bytes again at every rerun
_REMEMBERED: dict[bytes, dict[str, Any]] = {}


class Limits(Struct, frozen=True):
    """Bounds of one child: address space in bytes, processor seconds, wall-clock seconds."""

    memory_bytes: int
    seconds: int
    wall_seconds: float


def summary_of(source: Path | bytes, limits: Limits | None = None) -> dict[str, Any]:
    """The summary of a snapshot pickle.

    Raises:
        RefusedError: with the reason.
    """
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    most = FILE_BYTES if isinstance(source, Path) else BYTES
    if size > most:
        says = "" if isinstance(source, Path) else ". Where it lies, run: python -m advisor.reading.snapshot FILE > summary.json, and hand in summary.json"
        raise RefusedError(f"a snapshot of {show(size)}; at most {show(most)} are read here{says}")
    if limits is None:
        limits = Limits(FILE_MEMORY, FILE_SECONDS, FILE_SECONDS) if isinstance(source, Path) else Limits(MEMORY, SECONDS, SECONDS)
    if not sys.executable:
        raise RefusedError("a memory snapshot: it is read in a process of its own, and none can be started here")
    key = blake2b(source).digest() if isinstance(source, bytes) else None
    if key is not None and key in _REMEMBERED:
        return _REMEMBERED[key]
    command = [sys.executable, "-P", "-m", "advisor.reading.snapshot.child", str(limits.memory_bytes), str(limits.seconds)]
    if isinstance(source, Path):
        command.append(str(source.absolute()))
    summary = _answer(command, source if isinstance(source, bytes) else None, limits)
    if key is not None:
        if len(_REMEMBERED) >= REMEMBERED:
            _REMEMBERED.clear()
        _REMEMBERED[key] = summary
    return summary


def _answer(command: list[str], data: bytes | None, limits: Limits) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[3])
    environment = {key: value for key, value in os.environ.items() if key in ("SYSTEMROOT", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")}
    environment["PYTHONPATH"] = root  # the package that started it, wherever it lies
    try:
        done = subprocess.run(  # noqa: S603  our own module and numbers
            command, input=data if data is not None else b"", capture_output=True, timeout=limits.wall_seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(f"a snapshot that was not read within {show_time(limits.wall_seconds)}; record fewer events (max_entries) and dump again") from None
    except OSError as error:
        raise RefusedError(f"a memory snapshot: its process could not be started ({error.strerror or type(error).__name__})") from None
    if done.returncode != 0 or not done.stdout or len(done.stdout) > SUMMARY_BYTES:
        raise RefusedError(_died(done.returncode, limits))
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise RefusedError(str(answer["refused"]))
    summary: dict[str, Any] = answer["summary"]
    return summary


def _died(code: int, limits: Limits) -> str:
    if code in (-24, -9, 137):  # SIGXCPU, SIGKILL at the hard limit
        return f"a pickle that was not read within {limits.seconds} processor seconds: far more than a snapshot of its size needs; nothing of it was used"
    if code < 0:
        return f"a pickle that brought down the process that read it (signal {-code}), as one made to do so does; nothing of it was used"
    return "a pickle that could not be read within its limits of memory and time; nothing of it was used"
