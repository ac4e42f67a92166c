"""Checkpoint verification: what a block computes again in the backward pass must be what it computed in the forward pass.

Of one sampled block, every operator's output is remembered as a few values at fixed places; the recomputation's operators are compared with
them in order. Dropout that draws another mask, a changed input, a module in another mode: the first operator that differs has a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from advisor.measurement.watching import sites

VALUES = 128
MAX_OPERATORS = 2_000
TOLERANCE = 1e-2  # kernels that add in another order differ by rounding; another mask differs by the value itself


@dataclass(frozen=True, slots=True)
class Print:
    """One operator's output: name, shape, some values."""

    operator: str
    shape: tuple[int, ...]
    values: torch.Tensor


class Recomputing:
    """The operators of one block, first and again. ``running``: inside the block now."""

    def __init__(self, block: str) -> None:
        self.block = block
        self.first: list[Print] = []
        self.again = 0
        self.running = False
        self.differs: tuple[str, str] | None = None  # (operator, site)
        self.recomputed = False

    def enter(self, backward: bool) -> None:
        """The block's forward begins."""
        self.running = True
        if backward:
            self.recomputed, self.again = True, 0
        else:
            self.first.clear()

    def leave(self) -> None:
        """The block's forward ends."""
        self.running = False

    def see(self, operator: str, value: torch.Tensor, backward: bool) -> None:
        """An operator inside or outside the block made a tensor."""
        if not self.running or not value.is_floating_point() or operator.startswith(("empty", "new_empty")):
            return
        if not backward:
            if len(self.first) < MAX_OPERATORS:
                self.first.append(_print(operator, value))
            return
        if self.differs is not None or self.again >= len(self.first):
            return
        expected = self.first[self.again]
        self.again += 1
        if expected.operator != operator or expected.shape != tuple(value.shape):
            self.differs = (f"{operator} instead of {expected.operator}", sites.here(4)[0])
        elif not torch.allclose(expected.values, _print(operator, value).values, rtol=TOLERANCE, atol=1e-6, equal_nan=True):
            self.differs = (operator, sites.here(4)[0])


def _print(operator: str, value: torch.Tensor) -> Print:
    with torch.no_grad():
        flat = value.detach().reshape(-1)
        stride = max(1, flat.numel() // VALUES)
        return Print(operator, tuple(value.shape), flat[::stride][:VALUES].to("cpu", torch.float32, copy=True))
