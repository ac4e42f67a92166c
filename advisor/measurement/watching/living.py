"""Every live tensor, from the garbage collector's lists, and the storage that it shares with its views."""

from __future__ import annotations

import gc
import sys
import weakref

import torch


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

    The collector's list has some hundred thousand objects once the libraries are imported, nearly all of them old. As long as no collection has
    moved anything into the old generation since the last look, the tensors that are new are in the young ones, and those suffice.
    """

    def __init__(self) -> None:
        self._old: list[weakref.ref[torch.Tensor]] = []
        self._collections: tuple[int, int] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Tensors that Python knows, each once; meta tensors and wrappers left out."""
        kinds, now = _kinds(), _collections()
        if now is None or now != self._collections:
            objects = gc.get_objects()
        else:
            objects = gc.get_objects(generation=0)  # the youngest first: what moves up meanwhile is seen twice rather than not at all
            objects += gc.get_objects(generation=1)
            if _collections() != now:
                objects = gc.get_objects()
            objects += [tensor for ref in self._old if (tensor := ref()) is not None]
        found = {id(item): item for item in objects if type(item) in kinds}  # a set of types: isinstance would ask torch's metaclass, a million times
        objects.clear()
        self._old = [weakref.ref(tensor) for tensor in found.values()]
        self._collections = now
        return [tensor for tensor in found.values() if not tensor.is_meta and not hasattr(tensor, "_local_tensor")]


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
