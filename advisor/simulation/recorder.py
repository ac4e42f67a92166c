"""Records the birth and death of every storage on the meta device, with the operator, module and phase that made it.

A ``TorchDispatchMode`` sees each operator's outputs; what becomes of a storage is seen by :mod:`advisor.simulation.following`. Kernels that
allocate without passing the dispatcher (flash attention's backward) get their temporaries from :mod:`advisor.simulation.kernels`, so that the
stream equals that of a real run (checked against torch.profiler on CPU runs, see ``tests/simulation``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.simulation import kernels
from advisor.simulation.following import Following
from advisor.simulation.tensors import META, identity, local, on_one_device, tensors, to_host, wrappers

last_operator: tuple[str, str] | None = None  # the operator that was called last and its module, for the message where it failed


class Recorder(Following, TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no types here
    """The stream of everything that operators make while it is active; tests watch real CPU runs with the same recorder (``device="cpu"``)."""

    def __init__(self, temporaries: dict[Any, Callable[..., list[int]]] | None = None, *, device: str = META) -> None:
        Following.__init__(self, device)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.experts = 1  # tokens that ask which expert they go to are spread evenly over this many
        self.sequences = 0  # in a row without padding: positions that ask where they begin get so many answers
        self._temporaries = temporaries or {}

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

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run the operator on meta and note what is new."""
        kwargs = kwargs or {}
        if not Following._watching:
            return function(*args, **kwargs)
        if any(issubclass(kind, wrappers()) for kind in types):
            return NotImplemented  # they first turn the operator into those of what they hold
        self._pending = None
        args, kwargs = on_one_device(function, args, kwargs)
        if function.namespace == "_c10d_functional" and args[0].is_meta and (collective := identity(function, args[0])) is not None:
            return collective
        result = self._result(function, args, kwargs)
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

    def _result(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator's own result, or one of the shape that it has where there are values."""
        if function is torch.ops.aten.nonzero.default and args[0].is_meta:
            found = self.sequences if self.sequences and args[0].dim() == 1 else -(-args[0].numel() // self.experts)
            return torch.empty(found, args[0].dim(), dtype=torch.long, device=META)
        if self._away and to_host(function, args, kwargs):
            result = torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=META)
            self.put_on_host(result, pinned=bool(kwargs.get("non_blocking")))  # aten TensorConversions.cpp _to_copy: pinned where it may overlap
            return result
        if self._writes_over(function, args):
            function, args = torch.ops.aten._index_put_impl_.default, (*args[:4], True)
        return self._run(function, args, kwargs)

    def _writes_over(self, function: Any, args: tuple[Any, ...]) -> bool:
        """The gradient of indexing: added in place to fresh zeros, but not under a mode (FunctionsManual.cpp index_backward, areAnyTensorSubclassLike)."""
        adds = function is torch.ops.aten.index_put.default and len(args) > 3 and bool(args[3])
        return adds and self.phase == "backward" and not torch.is_grad_enabled()

    def _of_host(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if kwargs.get("device") is not None:  # it says where
            return False
        given = [value for value in (*tensors(args), *tensors(tuple(kwargs.values()))) if value.device.type == self.device]
        return bool(given) and all(value.untyped_storage()._cdata in self._away for value in given)

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in kernels.CONTIGUOUS_FIRST and args[0].is_meta:
            args = (torch.empty(args[0].shape, dtype=args[0].dtype, device=META), *args[1:])
        if function in kernels.GROUPED and args[0].is_meta and args[0].dtype == args[1].dtype in kernels.GROUP_BY_GROUP:
            return kernels.grouped_product(function, *args, **kwargs)
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
