"""Meta as an accelerator: the streams and events that sharding code asks ``torch.cuda`` for, found as ``torch.meta``.

FSDP looks its device's module up by the device's type (``torch.distributed.device_mesh._get_device_handle``,
``_FSDPDeviceHandle.from_device``). Nothing runs, so nothing is waited for; the current stream is what an allocation belongs to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

EIGHT = 8  # ranks on one node, where nothing says how many


class Event:
    """Recorded and waited for at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def record(self, *_: Any) -> Event:
        """As ``torch.cuda.Event``."""
        return self

    def wait(self, *_: Any) -> None:
        """Nothing runs."""

    synchronize = wait

    def query(self) -> bool:
        """Always over."""
        return True


class Queue:
    """A number: the pool that allocations on this stream come from."""

    def __init__(self, number: int) -> None:
        self.number = number

    def wait_stream(self, _: Any) -> None:
        """Nothing runs."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """As ``torch.cuda.Stream``."""
        return event or Event()

    def synchronize(self) -> None:
        """Nothing runs."""


class Meta:
    """What ``torch.cuda`` is for CUDA: streams, events, one current stream."""

    Event = Event

    def __init__(self) -> None:
        self._streams = 0
        self._default = self.now = Queue(0)

    def Stream(self, *_: Any, **__: Any) -> Queue:  # noqa: N802  as torch.cuda names it
        """A further stream."""
        self._streams += 1
        return Queue(self._streams)

    def number(self) -> int:
        """The stream that allocations belong to now."""
        return self.now.number

    def current_stream(self, *_: Any) -> Queue:
        """As ``torch.cuda``."""
        return self.now

    def default_stream(self, *_: Any) -> Queue:
        """As ``torch.cuda``."""
        return self._default

    @contextlib.contextmanager
    def stream(self, stream: Queue | None) -> Iterator[None]:
        """As ``torch.cuda.stream``."""
        before, self.now = self.now, stream or self.now
        try:
            yield
        finally:
            self.now = before

    def current_device(self) -> torch.device:
        """There is one."""
        return torch.device("meta")

    def device_count(self) -> int:
        """Ranks of a node."""
        return EIGHT

    def is_available(self) -> bool:
        """It is."""
        return True

    is_initialized = is_available

    def set_device(self, _: Any) -> None:
        """There is one."""

    def synchronize(self, *_: Any) -> None:
        """Nothing runs."""

    def is_current_stream_capturing(self) -> bool:
        """Never."""
        return False

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        """Free and whole: as much as anyone asks for."""
        return 1 << 60, 1 << 60
