"""Records the birth and death of every storage on the meta device, with the operator, module and phase that made it.

A ``TorchDispatchMode`` sees each operator's outputs; a finaliser on each new storage sees its end. Two corrections make the stream equal
to that of a real run (both were checked against torch.profiler on CPU runs, see ``tests/simulation``):

* a dispatch mode makes autograd's ``InputBuffer::accumulate`` add out of place, where a real run adds in place
  (torch/csrc/autograd/input_buffer.cpp, ``isTensorSubclassLike`` is true under any mode): such an extra buffer is merged away;
* kernels that allocate without passing the dispatcher (flash attention's backward) get their temporaries from
  :mod:`advisor.simulation.kernels`.

Where sharding code keeps parameters on the host, which is meta too, a storage is on the host when it was put there, when an operator made it
of what is there alone, or when a tensor was copied to the CPU; such storages have a stream of their own (:attr:`Recorder.host_events`).
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.simulation import kernels
from advisor.simulation.storages import Event, Storage, pinned_bytes, rounded
from advisor.simulation.tensors import META, identity, local, on_one_device, tensors, to_host, wrappers

last_operator: tuple[str, str] | None = None  # the operator that was called last and its module, for the message where it failed
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(weakref.__file__)))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no types here
    """Collects :attr:`events` and :attr:`storages` while it is active; set :attr:`phase` and :attr:`step` as the step goes on."""

    def __init__(self, temporaries: dict[Any, Callable[..., list[int]]] | None = None, *, device: str = META) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream: Callable[[], int] = _default_stream
        self.experts = 1  # tokens that ask which expert they go to are spread evenly over this many
        self.sequences = 0  # in a row without padding: positions that ask where they begin get so many answers
        self.device = device  # tests watch real CPU runs with the same recorder
        self.events: list[Event] = []
        self.storages: dict[int, Storage] = {}
        self.step, self.module = 0, ""
        self.marks: list[tuple[int, str, int]] = []  # (events before it, phase, step): where a phase begins
        self.moments: list[tuple[int, str, int]] = []  # (events before it, moment, step): where a moment of the estimate's begins
        self.host_events: list[Event] = []  # of storages that lie on the host
        self.host_moments: list[tuple[int, str, int]] = []
        self._away: dict[int, bool] = {}  # storages on the host, and whether in pinned memory
        self.phase = "build"
        self.moment = "load.ready"
        self._temporaries = temporaries or {}
        self._live: dict[int, int] = {}
        self._alias: dict[int, int] = {}
        self._keep: dict[int, Any] = {}
        self._named: dict[int, Storage] = {}  # what a storage was before it was given back by resize_
        self._next = 0
        self._pending: tuple[int, int, int] | None = None
        self._closed = False
        self._host = self.host_peak = 0

    _watching = True

    @classmethod
    @contextlib.contextmanager
    def paused(cls) -> Iterator[None]:
        """Nothing is recorded while the context is open."""
        before, cls._watching = cls._watching, False
        try:
            yield
        finally:
            cls._watching = before

    def __enter__(self) -> Self:
        """Watch operators, and storages that are resized."""
        resize = self._resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            before = storage.nbytes()
            result = resize(storage, size)
            self.resized(storage, before)
            return result

        setattr(torch.UntypedStorage, "resize_", resize_)  # noqa: B010  typed otherwise
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        setattr(torch.UntypedStorage, "resize_", self._resize)  # noqa: B010  typed otherwise
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """The last step is over: what ends from here on ends with the probe, not with the run."""
        self._closed = True

    @property
    def phase(self) -> str:
        """The phase that runs; setting it marks its beginning."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self.marks.append((len(self.events), name, self.step))

    @property
    def moment(self) -> str:
        """The moment that the step is at; setting it marks its beginning."""
        return self._moment

    @moment.setter
    def moment(self, name: str) -> None:
        self._moment = name
        self.moments.append((len(self.events), name, self.step))
        self.host_moments.append((len(self.host_events), name, self.step))

    def born(self, size: int, operator: str, shape: tuple[int, ...] = (), dtype: str = "", host: int | None = None) -> int:
        """Note an allocation, ``host``: of so many bytes there; returns its id."""
        number = self._next
        self._next += 1
        counted = rounded(size) if host is None else host
        self.storages[number] = Storage(
            counted, size, operator, self.phase, self.step, self.module, shape, dtype, site=_site(), stream=self.stream(), host=host is not None
        )
        (self.events if host is None else self.host_events).append(Event(False, number))
        return number

    def put_on_host(self, value: torch.Tensor, *, pinned: bool) -> None:
        """From now on the tensor's storage, which has not been seen yet, is the host's."""
        self._away[local(value).untyped_storage()._cdata] = pinned

    def on_host(self, value: torch.Tensor) -> bool:
        """Whether a tensor's storage is the host's."""
        return local(value).untyped_storage()._cdata in self._away

    def saved_on_host(self, size: int) -> None:
        """Note bytes that are kept on the host, or let go of there (negative)."""
        self._host += size
        self.host_peak = max(self.host_peak, self._host)

    def died(self, number: int) -> None:
        """Note the end of an allocation."""
        (self.host_events if self.storages[number].host else self.events).append(Event(True, number))

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

    def _follow(self, storage: torch.UntypedStorage, number: int) -> None:
        key = storage._cdata
        self._live[key] = number
        finaliser = weakref.finalize(storage, self._gone, key, number)
        finaliser.atexit = False
        self._keep[number] = finaliser

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """A storage given back, or asked for anew, by ``resize_``: how FSDP frees what it gathered. It keeps its name."""
        size, key = storage.nbytes(), storage._cdata
        if storage.device.type != self.device or size == before or self._closed or not Recorder._watching:
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

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run the operator on meta and note what is new."""
        kwargs = kwargs or {}
        if not Recorder._watching:
            return function(*args, **kwargs)
        if any(issubclass(kind, wrappers()) for kind in types):
            return NotImplemented  # they first turn the operator into those of what they hold
        self._pending = None
        args, kwargs = on_one_device(function, args, kwargs)
        if function.namespace == "_c10d_functional" and args[0].is_meta and (collective := identity(function, args[0])) is not None:
            return collective
        if function is torch.ops.aten.nonzero.default and args[0].is_meta:
            found = self.sequences if self.sequences and args[0].dim() == 1 else -(-args[0].numel() // self.experts)
            result = torch.empty(found, args[0].dim(), dtype=torch.long, device=META)
        elif self._away and to_host(function, args, kwargs):
            result = torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=META)
            self.put_on_host(result, pinned=bool(kwargs.get("non_blocking")))  # aten TensorConversions.cpp _to_copy: pinned where it may overlap
        else:
            result = self._run(function, args, kwargs)
        before = len(self.events)
        if function.namespace == "prim":
            return result
        name = str(function._name)
        if self._away and self._of_host(args, kwargs):
            for value in tensors(result):
                self._away.setdefault(local(value).untyped_storage()._cdata, False)
        for value in tensors(result):
            self.see(value, name)
        if function in self._temporaries:
            for number in [self.born(size, f"{name}#temporary") for size in self._temporaries[function](*args, **kwargs)]:
                self.died(number)
        elif self._may_accumulate(function, args, result, before):
            first = self._live.get(args[0].untyped_storage()._cdata)
            if first is not None:
                self._pending = (self._alias.get(first, first), self._next - 1, len(self.events))
        return result

    def _of_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if kwargs.get("device") is not None:  # it says where
            return False
        given = [value for value in (*tensors(args), *tensors(tuple(kwargs.values()))) if value.device.type == self.device]
        return bool(given) and all(value.untyped_storage()._cdata in self._away for value in given)

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in kernels.CONTIGUOUS_FIRST and args[0].is_meta:
            args = (torch.empty(args[0].shape, dtype=args[0].dtype, device=META), *args[1:])
        try:
            return function(*args, **kwargs)
        except Exception:
            global last_operator
            last_operator = (str(function._name), self.module)
            raise

    def _may_accumulate(self, function: Any, args: tuple[Any, ...], result: Any, before: int) -> bool:
        if self.phase != "backward" or function is not torch.ops.aten.add.Tensor or torch.is_grad_enabled() or len(self.events) != before + 1:
            return False
        first, second = args[0], args[1]
        return (
            isinstance(second, torch.Tensor)
            and first.stride() == result.stride()
            and first.shape == second.shape
            and first.dtype == second.dtype == result.dtype
            and first.untyped_storage().nbytes() == result.untyped_storage().nbytes()
        )


def _default_stream() -> int:
    return 0


def _site() -> str:
    """The innermost frame that is neither torch's nor the probe's; empty where C++ (autograd) called."""
    frame = sys._getframe(2)
    for _ in range(24):
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<"):
            return f"{'/'.join(name.split('/')[-3:])}:{frame.f_lineno} {frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
