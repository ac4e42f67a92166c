"""Every live tensor, from the garbage collector's lists, and the storage that it shares with its views."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from itertools import compress
from typing import cast

import torch

MOST_HEARD = 64  # collections between two looks, beyond which the next looks at everything


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor's local part."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) else tensor


def storage_of(tensor: torch.Tensor) -> int | None:
    """A key of the tensor's storage; ``None`` where it holds no memory."""
    try:
        storage = plain(tensor).untyped_storage()
        return storage._cdata if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):
        return None


class Living:
    """The live tensors at one boundary after another; it keeps weak references only.

    The collector's lists have some hundred thousand objects once the libraries are imported, nearly all of them old, and looking at each costs a tenth
    of a second. What is new is in the young ones, as long as no collection has made it old: those suffice where none has come since the last look, or
    where each that came has told (``soon``).
    """

    def __init__(self) -> None:
        self._old: list[weakref.ref[torch.Tensor]] = []
        self._collections: tuple[int, int] | None = None
        self._kinds: frozenset[type] = frozenset()
        self._heard = 0  # collections that have told since the last look
        self._hears = False

    def tensors(self, *, soon: bool = False) -> list[torch.Tensor]:
        """Tensors that Python knows, each once; meta tensors and wrappers left out. ``soon``: the next look is some steps away at most."""
        now, self._kinds = _collections(), _kinds()
        if self._hears or (now is not None and now == self._collections):
            objects = _young()
            if not self._hears and _collections() != now:
                objects = gc.get_objects()
            objects += [tensor for ref in self._old if (tensor := ref()) is not None]
        else:
            objects = gc.get_objects()
        found = {id(item): item for item in self._of(objects)}
        objects.clear()
        self._old = [weakref.ref(tensor) for tensor in found.values()]
        self._collections, self._heard = now, 0
        self.deaf()
        if soon and now is not None:
            gc.callbacks.append(self._collecting)
            self._hears = True
        return [tensor for tensor in found.values() if not tensor.is_meta and not hasattr(tensor, "_local_tensor")]

    def deaf(self) -> None:
        """No longer be told of collections."""
        if self._hears:
            self._hears = False
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, about: dict[str, int]) -> None:
        """The collector is about to make young objects old, the tensors among them are remembered."""
        if phase != "start" or about["generation"] == 0:
            return
        self._heard += 1
        if self._heard > MOST_HEARD:
            self.deaf()
        else:
            self._old += [weakref.ref(tensor) for tensor in self._of(_young())]

    def _of(self, objects: list[object]) -> Iterator[torch.Tensor]:
        """The tensors among objects; by their exact type: isinstance would ask torch's metaclass, a million times."""
        return compress(cast("list[torch.Tensor]", objects), map(self._kinds.__contains__, map(type, objects)))


def _young() -> list[object]:
    """Objects that no collection has made old; the youngest first: what moves up meanwhile is seen twice rather than not at all."""
    return gc.get_objects(generation=0) + gc.get_objects(generation=1)


def _collections() -> tuple[int, int] | None:
    """How often the middle and the old generation were collected; ``None`` where generations mean something else (3.14's collector)."""
    if sys.version_info >= (3, 14):
        return None
    stats = gc.get_stats()
    return stats[1]["collections"], stats[2]["collections"]


def _kinds() -> frozenset[type]:
    """``torch.Tensor`` and its subclasses of torch itself, e.g. ``Parameter``."""
    found: set[type] = set()
    rest: list[type] = [torch.Tensor]
    while rest:
        kind = rest.pop()
        if kind not in found:
            found.add(kind)
            rest += type.__subclasses__(kind)
    return frozenset(kind for kind in found if kind.__module__.partition(".")[0] == "torch")
