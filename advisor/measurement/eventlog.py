"""Events of a watched run as JSON lines: append-only, bounded, readable after a kill in the middle. No tensor contents, no user data.

One ``write`` a line on a descriptor opened for appending: what was logged before a kill is whole, and at most the last line is cut, which
:func:`read` skips and counts. At ``max_bytes`` the file becomes ``NAME.1`` (the older ones move up, the oldest goes) and a new one begins, with
what the log is kept for (what ran, what was found) written once more, or a long run would rotate it away.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = 1
MAX_BYTES = 8 * 1024 * 1024
FILES = 3
MAX_LINE = 16 * 1024
LEVELS = ("note", "warning")
AGAIN = "again"  # of a line that was in an older file too
CARRIED = frozenset({"start", "software", "job", "finding"})
CARRIED_SHARE = 0.25  # of a file at most
MAX_READ_LINES = 1_000_000
FIRST_LINES = 1000  # every line of a log is an event, but for one that a kill cut


class EventLog:
    """Writes events; never raises into the run it watches: a disk that is full ends the log, not the training."""

    def __init__(self, path: Path | str, *, max_bytes: int = MAX_BYTES, files: int = FILES) -> None:
        self.path, self.max_bytes, self.files = Path(path), max_bytes, files
        self.failed: str | None = None
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._descriptor).st_size
        self._carried: list[bytes] = []

    def write(self, kind: str, level: str = "note", **values: Any) -> None:
        """Append one event."""
        if self.failed is not None:
            return
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, "level": level, **values}, ensure_ascii=False, default=str).encode()
        if len(line) > MAX_LINE:
            line = json.dumps({"time": round(time.time(), 3), "kind": kind, "level": level, "cut": len(line)}).encode()
        try:
            if self._size + len(line) + 1 > self.max_bytes and self._size:
                self._rotate()
            self._size += os.write(self._descriptor, line + b"\n")
            if kind in CARRIED and sum(map(len, self._carried)) + len(line) + 32 <= self.max_bytes * CARRIED_SHARE:
                self._carried.append(line[:-1] + f', "{AGAIN}": true}}\n'.encode())
        except OSError as error:
            self.failed = str(error)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _rotate(self) -> None:
        os.close(self._descriptor)
        for number in range(self.files - 1, 0, -1):
            older = self.path if number == 1 else _numbered(self.path, number - 1)
            if older.exists():
                older.replace(_numbered(self.path, number))
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = sum(os.write(self._descriptor, line) for line in self._carried)


def of_rank(path: Path) -> Path:
    """The log of this rank, where several run: two writers would rotate each other's file away."""
    rank = os.environ.get("RANK", "")
    several = os.environ.get("WORLD_SIZE", "1") != "1" and rank.isdecimal()
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if several else path


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def looks_like_one(path: Path | str) -> bool:
    """Whether one of the first lines is an event: the rest of another kind of file, which may be large, need not be read.

    Raises:
        OSError: the file can not be read.
    """
    if _numbered(Path(path), 1).is_file():
        return True  # only a log is rotated so, and a kill may have come before the new file's first line
    with Path(path).open("rb") as handle:
        return any(_event(handle.readline(MAX_LINE * 2)) is not None for _ in range(FIRST_LINES))


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


def read(path: Path | str, *, broken: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a log, its rotated files first; numbers of lines that are no event are added to ``broken``."""
    first = Path(path)
    files = [f for n in range(64, 0, -1) if (f := _numbered(first, n)).is_file()] + [first]
    count = 0
    for file in files:
        with file.open("rb") as handle:
            while line := handle.readline(MAX_LINE * 2):
                count += 1
                if count > MAX_READ_LINES:
                    return
                if (event := _event(line)) is not None:
                    yield event
                elif broken is not None:
                    broken.append(count)
