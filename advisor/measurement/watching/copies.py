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
    wanted = {stranger.numel() for stranger in strangers if stranger.grad_fn is None and stranger.numel() > 1}
    owned: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for part, _, tensor in tensors(model, optimizer):
        if part != "gradients" and tensor.numel() in wanted:
            owned.setdefault(tensor.numel(), []).append((part, tensor))
    suspects = [stranger for stranger in strangers if stranger.grad_fn is None and stranger.numel() in owned]
    values = Values([tensor for members in owned.values() for _, tensor in members], suspects)
    groups: dict[Holder, list[tuple[torch.Tensor, str | None]]] = {}
    for stranger in suspects:
        candidates = owned[stranger.numel()]
        number = values.same_as(stranger)
        alike = any(tensor.shape == stranger.shape for _, tensor in candidates)
        holder = held.get(id(stranger), NOBODY)
        if number is not None or (alike and holder.module):
            groups.setdefault(holder, []).append((stranger, None if number is None else next(p for p, t in candidates if t is number)))
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


class Values:
    """Values of tensors at fixed places: read from each device at once, and looked up rather than compared pair by pair."""

    def __init__(self, owned: list[torch.Tensor], strangers: list[torch.Tensor]) -> None:
        turned = {(tensor.numel(), tensor.shape[::-1]) for tensor in owned if tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1]}
        self._seen: dict[tuple[int, bool, torch.dtype], tuple[float, ...]] = {}
        self._taken = _read([(t, False) for t in (*owned, *strangers)] + [(t, True) for t in strangers if (t.numel(), t.shape) in turned])
        self._index: dict[tuple[int, torch.dtype, torch.dtype], dict[tuple[float, ...], list[torch.Tensor]]] = {}  # by element count, own dtype, compared in
        self._owned: dict[int, list[torch.Tensor]] = {}
        for tensor in owned:
            if tensor.is_floating_point():
                self._owned.setdefault(tensor.numel(), []).append(tensor)

    def same_as(self, stranger: torch.Tensor) -> torch.Tensor | None:
        """The owned tensor that holds a stranger's values, as they are or transposed, in the narrower dtype of the two."""
        if not stranger.is_floating_point():
            return None
        for dtype in dict.fromkeys(tensor.dtype for tensor in self._owned.get(stranger.numel(), ())):
            narrow = dtype if dtype.itemsize <= stranger.dtype.itemsize else stranger.dtype
            known = self._of_owned(stranger.numel(), dtype, narrow)
            for turned in (False, True):
                if (id(stranger), turned) not in self._taken:
                    continue
                values = self._in(stranger, turned, narrow)
                for tensor in known.get(values, ()) if any(value != values[0] for value in values) else ():
                    if _turned(tensor, stranger) is turned:
                        return tensor
        return None

    def _of_owned(self, count: int, dtype: torch.dtype, narrow: torch.dtype) -> dict[tuple[float, ...], list[torch.Tensor]]:
        if (found := self._index.get((count, dtype, narrow))) is None:
            found = self._index[count, dtype, narrow] = {}
            for tensor in self._owned[count]:
                if tensor.dtype == dtype:
                    found.setdefault(self._in(tensor, False, narrow), []).append(tensor)
        return found

    def _in(self, tensor: torch.Tensor, turned: bool, dtype: torch.dtype) -> tuple[float, ...]:
        key = id(tensor), turned, dtype
        if (values := self._seen.get(key)) is None:
            values = self._seen[key] = tuple(self._taken[id(tensor), turned].to(dtype).tolist())
        return values


def _turned(owned: torch.Tensor, stranger: torch.Tensor) -> bool | None:
    """How a stranger's elements would have to be read to be in the owned one's order; ``None``: they can not be."""
    if owned.dim() == 2 and stranger.shape == owned.shape[::-1] and owned.shape != stranger.shape:
        return True
    return None if owned.shape != stranger.shape and not stranger.is_contiguous() else False


def _read(wanted: list[tuple[torch.Tensor, bool]]) -> dict[tuple[int, bool], torch.Tensor]:
    """A sample of each on the host, by id and whether it was turned; one transfer for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[tuple[int, bool], torch.Tensor]]] = {}
    for tensor, turned in wanted:
        if tensor.is_floating_point():
            taken = sample(tensor.t() if turned else tensor, SAMPLES)
            groups.setdefault((tensor.device, tensor.dtype), []).append(((id(tensor), turned), taken))
    found: dict[tuple[int, bool], torch.Tensor] = {}
    for members in groups.values():
        whole = torch.cat([taken for _, taken in members]).cpu()
        found.update(zip((key for key, _ in members), torch.split(whole, [len(taken) for _, taken in members]), strict=True))
    return found
