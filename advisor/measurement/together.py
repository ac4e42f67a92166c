"""How several ranks end together: one that can not go on tells the others, which wait for it in a collective, and would until that times out.

The word passes through the launcher's store (torch.distributed ``TCPStore`` at ``MASTER_ADDR``), by a connection of its own, since the group's may
be held by whoever waits in it; a thread of each rank looks for it, because the rank itself is within a collective that nothing ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

KEY = "advisor.measurement.ended"
FIRST, HEARD, WRITTEN = f"{KEY}.first", f"{KEY}.heard", f"{KEY}.written"
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10.0  # that the rank which ends waits for the others to have heard: a few times what their threads take on a busy machine
STORE_SECONDS = 30.0  # for an answer of the store


class Together:
    """This rank's end of the word. ``write``: where an answer goes, asked of rank 0; ``leave`` ends the process, whatever its other threads wait for."""

    def __init__(self, rank: int, ranks: int, store: Any, write: Callable[[dict[str, Any]], None], leave: Callable[[int], Any] = os._exit) -> None:
        self._rank, self._ranks, self._store, self._write, self._leave = rank, ranks, store, write, leave
        self._over, self._following = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def begin(self) -> None:
        """Look for a word from now on."""
        self._thread.start()

    def close(self) -> None:
        """All have come to the end."""
        self._over.set()
        self._thread.join()

    def end(self, answer: dict[str, Any], code: int, why: str) -> NoReturn:
        """End every rank with ``code`` and this answer, which rank 0 writes. Where another rank was first, its answer stands."""
        self._over.set()
        if self._store.add(FIRST, 1) > 1:
            self._follow()
        if self._rank == 0:
            self._write(answer)
        word = {"answer": answer, "code": code, "says": f"rank {self._rank} {why}"}
        self._store.set(KEY, json.dumps(word, default=str))
        self._say(f"rank {self._rank} {why}: it ends the measurement on all {self._ranks} ranks")
        heard = self._until(lambda: self._store.add(HEARD, 0) >= self._ranks - 1)
        if self._rank != 0 and not heard and not self._store.check([WRITTEN]):
            self._write(answer)
        self._out(code)

    def heard(self) -> None:
        """After an error that may follow from another rank's end: end with it. Returns where none has told of one."""
        if self._until(lambda: self._store.check([KEY])):
            self._follow()

    def _look(self) -> None:
        try:
            while not self._over.wait(POLL_SECONDS):
                if self._store.check([KEY]):
                    self._follow()
        except RuntimeError:  # the store is gone, and with it the launcher, which ends its ranks
            return

    def _follow(self) -> NoReturn:
        with self._following:  # the thread and the rank itself may both have heard
            self._store.wait([KEY])
            word = json.loads(self._store.get(KEY))
            if self._rank == 0:
                self._write(word["answer"])
                self._store.set(WRITTEN, "1")
            self._say(f"{word['says']}: rank {self._rank} ends with it")
            self._store.add(HEARD, 1)
            self._out(word["code"])

    def _until(self, holds: Callable[[], bool]) -> bool:
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := holds()) and time.monotonic() < end:
            time.sleep(POLL_SECONDS / 4)
        return found

    def _say(self, text: str) -> None:
        print(f"measure: {text}", file=sys.stderr, flush=True)

    def _out(self, code: int) -> NoReturn:
        sys.stdout.flush()
        self._leave(code)
        raise SystemExit(code)


def joined(write: Callable[[dict[str, Any]], None]) -> Together | None:
    """The word of the group that this process has joined; ``None``: it is alone."""
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])  # by which the group was joined
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch exports it where it is built with it
        *place, is_master=False, timeout=timedelta(seconds=STORE_SECONDS)
    )
    found = Together(dist.get_rank(), dist.get_world_size(), store, write)
    found.begin()
    return found
