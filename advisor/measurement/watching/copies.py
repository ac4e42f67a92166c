"""Copies: live tensors outside model and optimizer that hold the same values as a parameter or an optimizer state, in any dtype or layout.

Values are compared at :data:`SAMPLES` places, in the narrower of the two dtypes; tensors of one value only (zeros, ones) prove nothing and are
left out. A foreign module with the model's shapes counts also where its values differ (a reference of another checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.holders import NOBODY, Holder
from advisor.measurement.watching.owned import short, tensors
from advisor.measurement.watching.sampling import sample
from advisor.units import show

SAMPLES = 64
ALIKE_SHARE = 0.5  # of a foreign module's bytes that have a parameter's shape


def find(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, strangers: list[torch.Tensor], held: Mapping[int, Holder], least: int, step: int
) -> list[Finding]:
    """One finding for each holder of copies that together are at least ``least`` bytes."""
    owned: dict[int, list[tuple[str, str, torch.Tensor]]] = {}
    for part, name, tensor in tensors(model, optimizer):
        if part != "gradients" and tensor.numel() > 1:
            owned.setdefault(tensor.numel(), []).append((part, name, tensor))
    samples = Samples()
    groups: dict[Holder, list[tuple[torch.Tensor, str | None]]] = {}
    for stranger in strangers:
        if stranger.grad_fn is not None:
            continue
        candidates = owned.get(stranger.numel(), [])
        if not candidates:
            continue
        same = next((part for part, _, tensor in candidates if samples.same_values(tensor, stranger)), None)
        alike = any(tensor.shape == stranger.shape for _, _, tensor in candidates)
        holder = held.get(id(stranger), NOBODY)
        if same is not None or (alike and holder.module):
            groups.setdefault(holder, []).append((stranger, same))
    return [f for holder, members in groups.items() if (f := _finding(holder, members, least, step)) is not None]


def _finding(holder: Holder, members: list[tuple[torch.Tensor, str | None]], least: int, step: int) -> Finding | None:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t, _ in members}
    size = sum(storages.values())
    if size < least:
        return None
    dtype = "/".join(sorted({short(t.dtype) for t, _ in members}))
    parts = {part for _, part in members}
    what = "the optimizer's state" if parts == {"optimizer"} else "the model's weights" + (" and the optimizer's state" if "optimizer" in parts else "")
    if holder.checkpoint:
        kind, title = "resume-on-device", f"the loaded checkpoint stays alive: {holder.name} holds {what} again ({dtype}, {show(size)})"
    elif holder.module:
        same = "the same values" if None not in parts else "the same shapes"
        kind, title = "reference-copy", f"another model is resident: {holder.name} ({holder.kind}) has {same} as the one that trains ({dtype}, {show(size)})"
    else:
        kind, title = "duplicate-layout", f"{holder.name} holds {what} again ({dtype}, {show(size)})"
    return Finding(kind, title, holder.where, size, dtype, "optimizer" if parts == {"optimizer"} else "weights", holder.name, step)


class Samples:
    """Values of tensors at fixed places, each read from its device once."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, bool], torch.Tensor] = {}
        self._values: dict[tuple[int, bool, torch.dtype], tuple[float, ...]] = {}

    def same_values(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors of equal element count hold the same values, as they are or transposed, in the narrower dtype of the two."""
        if not (one.is_floating_point() and other.is_floating_point()):
            return False
        turned = one.dim() == 2 and other.shape == one.shape[::-1] and one.shape != other.shape
        if not turned and one.shape != other.shape and not other.is_contiguous():
            return False
        narrow = one.dtype if one.element_size() <= other.element_size() else other.dtype
        values = self._of(one, False, narrow)
        return values == self._of(other, turned, narrow) and any(value != values[0] for value in values)

    def _of(self, tensor: torch.Tensor, turned: bool, dtype: torch.dtype) -> tuple[float, ...]:
        key = id(tensor), turned
        if (values := self._values.get((*key, dtype))) is None:
            if (taken := self._taken.get(key)) is None:
                taken = self._taken[key] = sample(tensor.detach().t() if turned else tensor, SAMPLES).cpu()
            values = self._values[*key, dtype] = tuple(taken.to(dtype).tolist())
        return values
