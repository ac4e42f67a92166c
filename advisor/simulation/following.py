"""Follows each storage from the tensor that first shows it to its end, whoever lets go of it; a finaliser on the storage sees that.

A dispatch mode makes autograd's ``InputBuffer::accumulate`` add out of place, where a real run adds in place (torch/csrc/autograd/input_buffer.cpp,
``isTensorSubclassLike`` is true under any mode): such an extra buffer (:attr:`Following._pending`) is merged away where the first operand ends
before anything else happens.

Where sharding code keeps parameters on the host, which is meta too, a storage is on the host when it was put there, when an operator made it
of what is there alone, or when a tensor was copied to the CPU; such storages have events of their own (:attr:`Stream.host_events`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from advisor.simulation.storages import Storage, pinned_bytes
from advisor.simulation.stream import Stream
from advisor.simulation.tensors import local


class Following(Stream):
    """The stream of the storages on one ``device``."""

    _watching = True

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self._live: dict[int, int] = {}
        self._alias: dict[int, int] = {}
        self._keep: dict[int, Any] = {}
        self._named: dict[int, Storage] = {}  # what a storage was before it was given back by resize_
        self._away: dict[int, bool] = {}  # storages on the host, and whether in pinned memory
        self._pending: tuple[int, int, int] | None = None  # first operand and result of a sum that a real run makes in place, and the events so far
        self._closed = False

    @classmethod
    @contextlib.contextmanager
    def paused(cls) -> Iterator[None]:
        """Nothing is recorded while the context is open."""
        before, Following._watching = Following._watching, False
        try:
            yield
        finally:
            Following._watching = before

    def close(self) -> None:
        """The last step is over: what ends from here on ends with the probe, not with the run."""
        self._closed = True

    def see(self, value: Any, operator: str) -> int | None:
        """Note a tensor's storage if it is new; returns the id of a new one."""
        if not isinstance(value, torch.Tensor) or value.device.type != self.device:
            return None
        value = local(value)
        storage = value.untyped_storage()
        if storage._cdata in self._live or not storage.nbytes():
            return None
        pinned = self._away.get(storage._cdata)
        host = None if pinned is None else pinned_bytes(storage.nbytes()) if pinned else storage.nbytes()
        number = self.born(storage.nbytes(), operator, tuple(value.shape), str(value.dtype).removeprefix("torch."), host)
        self._follow(storage, number)
        return number

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """A storage given back, or asked for anew, by ``resize_``: how FSDP frees what it gathered. It keeps its name."""
        size, key = storage.nbytes(), storage._cdata
        if storage.device.type != self.device or size == before or self._closed or not Following._watching:
            return
        old = self._live.pop(key, None)
        known = self._named.get(key)
        if old is not None:
            self._keep.pop(old).detach()
            number = self._alias.pop(old, old)
            known = self._named[key] = self.storages[number]
            self.died(number)
        if size:
            new = self.born(size, "resize_", known.shape if known else (), known.dtype if known else "")
            if known is not None:
                self.storages[new].part, self.storages[new].name = known.part, known.name
            self._follow(storage, new)

    def number_of(self, value: torch.Tensor) -> int | None:
        """The id of a live tensor's storage."""
        number = self._live.get(local(value).untyped_storage()._cdata)
        return None if number is None else self._alias.get(number, number)

    def label(self, value: torch.Tensor | None, part: str, name: str) -> None:
        """Say what a live tensor is, where nothing has said so yet."""
        number = None if value is None else self.number_of(value)
        if number is not None and self.storages[number].part is None:
            self.storages[number].part, self.storages[number].name = part, name

    def put_on_host(self, value: torch.Tensor, *, pinned: bool) -> None:
        """From now on the tensor's storage, which has not been seen yet, is the host's."""
        self._away[local(value).untyped_storage()._cdata] = pinned

    def on_host(self, value: torch.Tensor) -> bool:
        """Whether a tensor's storage is the host's."""
        return local(value).untyped_storage()._cdata in self._away

    def _follow(self, storage: torch.UntypedStorage, number: int) -> None:
        key = storage._cdata
        self._live[key] = number
        finaliser = weakref.finalize(storage, self._gone, key, number)
        finaliser.atexit = False
        self._keep[number] = finaliser

    def _gone(self, key: int, number: int) -> None:
        self._live.pop(key, None)
        self._away.pop(key, None)
        self._keep.pop(number, None)
        if self._closed:
            return
        number = self._alias.pop(number, number)
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] == number and len(self.events) == pending[2]:
            self.events.pop()  # the sum took the first operand's place, as in a real run
            self.storages.pop(pending[1])
            self._alias[pending[1]] = number
            return
        self.died(number)
