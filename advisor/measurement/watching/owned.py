"""What the model and the optimizer own: parameters, buffers, gradients, optimizer state, by storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from advisor.measurement.watching.living import plain, storage_of


@dataclass(frozen=True, slots=True)
class Own:
    """One owned tensor's storage: part of the ledger, name, bytes, dtype."""

    part: str
    name: str
    bytes: int
    dtype: str


def short(dtype: torch.dtype) -> str:
    """``bf16``, ``fp32``, ``fp16``, else torch's own word."""
    return {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16", torch.float64: "fp64"}.get(dtype, str(dtype).removeprefix("torch."))


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, str, torch.Tensor]]:
    """``(part, name, tensor)`` of everything owned."""
    names = {}
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        yield "weights", name, plain(parameter)
        if parameter.grad is not None:
            yield "gradients", name, plain(parameter.grad)
    for name, buffer in model.named_buffers():
        yield "weights", name, plain(buffer)
    if optimizer is not None:
        for owner, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield "optimizer", f"{names.get(id(owner), '?')} {key}", plain(value)


def by_storage(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[int, Own]:
    """Each owned storage once."""
    found: dict[int, Own] = {}
    for part, name, tensor in tensors(model, optimizer):
        given = of(tensor, part, name)
        if given is not None:
            found.setdefault(*given)
    return found


def of(tensor: torch.Tensor, part: str, name: str) -> tuple[int, Own] | None:
    """One tensor's storage and what it is; ``None`` where it holds no memory."""
    key = storage_of(tensor)
    return None if key is None else (key, Own(part, name, plain(tensor).untyped_storage().nbytes(), short(tensor.dtype)))


def by_part(owns: Iterable[Own]) -> dict[str, dict[str, int]]:
    """Bytes by part and dtype."""
    found: dict[str, dict[str, int]] = {}
    for own in owns:
        dtypes = found.setdefault(own.part, {})
        dtypes[own.dtype] = dtypes.get(own.dtype, 0) + own.bytes
    return found


def stored_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model as saved: its state dict, each storage once."""
    sizes: dict[int, int] = {}
    for tensor in model.state_dict().values():
        if isinstance(tensor, torch.Tensor):
            local = plain(tensor)
            sizes[local.untyped_storage()._cdata] = local.untyped_storage().nbytes()
    return sum(sizes.values())
