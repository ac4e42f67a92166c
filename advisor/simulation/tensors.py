"""The tensors of an operator: what a rank holds of those around others, and on which device they meet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

META = "meta"


def local(value: torch.Tensor) -> torch.Tensor:
    """What a rank holds of a DTensor, and what a collective returned before it is waited for; any other tensor as it is."""
    held: torch.Tensor = getattr(value, "_local_tensor", value)
    returned: torch.Tensor = getattr(held, "elem", held)
    return returned


def wrappers() -> tuple[type, ...]:
    """Tensors around tensors: DTensor, and what a collective returned before it is waited for."""
    names = (("torch.distributed.tensor", "DTensor"), ("torch.distributed._functional_collectives", "AsyncCollectiveTensor"))
    return tuple(kind for module, name in names if (kind := getattr(sys.modules.get(module), name, None)) is not None)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an operator's arguments or result (pytree's walk costs a fifth of the probe)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def identity(function: Any, value: torch.Tensor) -> torch.Tensor | None:
    """What a step around a collective hands on, of which meta's own kernels would make a copy; None for the collective itself."""
    if function._opname == "wait_tensor":
        return value
    if function._opname == "_wrap_tensor_autograd":
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        return AsyncCollectiveTensor(value)
    return None


def to_host(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator copies a tensor on meta to the CPU, which meta has no values for."""
    device = kwargs.get("device")
    return function._name == "aten::_to_copy" and args[0].is_meta and device is not None and torch.device(device).type == "cpu"


def on_one_device(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Index tensors that a model keeps on the CPU (image grids) are taken to meta where they meet meta tensors."""
    if function.namespace != "aten":
        return args, kwargs
    found = [*tensors(args), *tensors(tuple(kwargs.values()))]
    if not any(not x.is_meta and x.dim() > 0 for x in found) or not any(x.is_meta for x in found):
        return args, kwargs
    flat, spec = tree_flatten((args, kwargs))
    moved = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=META) if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dim() > 0 else x
        for x in flat
    ]
    args, kwargs = tree_unflatten(moved, spec)
    return args, kwargs
