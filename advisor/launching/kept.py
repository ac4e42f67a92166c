"""What is kept of a program's output while it passes through: its head, the surroundings of its first memory failure, and its tail.

Bounded whatever the program prints, and cheap: a chunk costs a few substring searches, a regular expression only where one of them hits.
"""

from __future__ import annotations

import re
from collections import deque

HEAD_BYTES = 256 * 1024  # configs and versions are printed first
BEFORE_BYTES = 64 * 1024  # of the first failure: the step that led to it
AFTER_BYTES = 256 * 1024  # of the first failure: its traceback, of many ranks
TAIL_BYTES = 1024 * 1024
OVERLAP = 64  # a marker may be cut by a chunk's end; none is longer

# a chunk without any of these holds no marker
_HINTS = (b"emor", b"EMORY", b"EXHAUSTED", b"lloc", b"ALLOC", b"KILL", b"-9", b"illed")
_FAILURE = re.compile(
    rb"[Oo]ut of memory|OutOfMemory|OUT_OF_MEMORY|OUT OF MEMORY|RESOURCE_EXHAUSTED|[Cc]annot allocate memory|bad_alloc|MemoryError|ALLOC_FAILED|"
    rb"SIGKILL|exitcode ?\s?:? ?-9|return code = -9|OOMKilled|oom[-_]kill|\bKilled\b"
)


class Kept:
    """One stream's bounded memory. ``total`` counts every byte that passed."""

    def __init__(self) -> None:
        self.total = 0
        self.failed_at: int | None = None  # offset of the first failure's marker
        self._head = bytearray()
        self._around = bytearray()
        self._around_from = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._last = b""

    def feed(self, chunk: bytes) -> None:
        """Note what has just passed."""
        if self.failed_at is None:
            self._look(chunk)
        elif (room := AFTER_BYTES - (self.total - self.failed_at)) > 0:
            self._around += chunk[:room]
        if (room := HEAD_BYTES - len(self._head)) > 0:
            self._head += chunk[:room]
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())
        self.total += len(chunk)

    def _look(self, chunk: bytes) -> None:
        joined = self._last + chunk
        self._last = joined[-OVERLAP:]
        if not any(hint in joined for hint in _HINTS) or (found := _FAILURE.search(joined)) is None:
            return
        at = max(0, self.total - (len(joined) - len(chunk)) + found.start())
        before = b"".join(self._tail)[-BEFORE_BYTES:]
        self._around_from = self.total - len(before)
        self._around = bytearray(before + chunk[:AFTER_BYTES])
        self.failed_at = at

    def text(self) -> bytes:
        """Head, first failure and tail in their order, each byte once; what lies between is named with its size."""
        tail = b"".join(self._tail)
        pieces = [(0, bytes(self._head)), (self.total - len(tail), tail)]
        if self.failed_at is not None:
            pieces.append((self._around_from, bytes(self._around)))
        out, end = bytearray(), 0
        for start, piece in sorted(pieces):
            if start > end:
                out += b"\n[%d bytes of output were not kept]\n" % (start - end)
            out += piece[max(0, end - start) :]
            end = max(end, start + len(piece))
        return bytes(out)
