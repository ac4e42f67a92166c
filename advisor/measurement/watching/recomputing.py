"""Checkpoint verification: what a block computes again in the backward pass must be what it computed in the forward pass.

Of one sampled block, every operator's output is remembered as a few values at fixed places (on its device: nothing waits for them); the
recomputation's operators are compared with them in order when the step is over. Dropout that draws another mask, a changed input, a module in
another mode: the first operator that differs has a line. Its gradients are compared by :mod:`replaying`, which runs the block once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from advisor.measurement.watching import sites
from advisor.measurement.watching.checkpointed import Call, Unfit, running
from advisor.measurement.watching.sampling import sample

VALUES = 128
MAX_OPERATORS = 2_000
TOLERANCE = 1e-2  # kernels that add in another order differ by rounding; another mask differs by the value itself


@dataclass(frozen=True, slots=True)
class Print:
    """One operator's output: name, shape, some values, and the place that made it."""

    operator: str
    shape: tuple[int, ...]
    values: torch.Tensor  # [at most VALUES]
    site: str


class Recomputing:
    """The operators of one block, first and again. ``running``: inside the block now; ``made``: bytes of its first forward pass."""

    def __init__(self, block: str, where: str = "") -> None:
        self.block, self.where = block, where  # its name, and the place of its forward
        self.call: Call | None = None  # what its checkpoint was asked to run
        self.unfit: str | None = None  # why it can not be run once more
        self.made = 0
        self.communicates = False  # with other ranks
        self.first: list[Print] = []
        self.again: list[Print] = []
        self.running = False

    def enter(self, backward: bool) -> None:
        """The block's forward begins."""
        self.running = True
        (self.again if backward else self.first).clear()

    def ask(self) -> None:
        """Which checkpoint runs here, where that is not known yet."""
        if self.call is None and self.unfit is None:
            try:
                self.call = running()
            except Unfit as reason:
                self.unfit = str(reason)

    def leave(self) -> None:
        """The block's forward ends."""
        self.running = False

    def see(self, operator: str, value: torch.Tensor, backward: bool) -> None:
        """An operator made a tensor while the block ran."""
        kept = self.again if backward else self.first
        self.made += 0 if backward else value.untyped_storage().nbytes()
        if len(kept) < MAX_OPERATORS and value.is_floating_point() and not operator.startswith(("empty", "new_empty")):
            kept.append(_print(operator, value, sites.here(4) if backward else ""))

    def differs(self) -> tuple[str, str] | None:
        """``(operator, site)`` of the first that was computed otherwise. Waits for the device once."""
        if self.call is not None and self.call.selective:
            return None  # what is kept is not computed again: the two are no longer in step
        pairs = list(zip(self.first, self.again, strict=False))  # the recomputation may stop once it has all that is needed
        alike = next((n for n, (a, b) in enumerate(pairs) if a.operator != b.operator or a.shape != b.shape), len(pairs))
        if alike:
            first, again = (torch.cat([pair[side].values for pair in pairs[:alike]]).cpu() for side in (0, 1))
            wrong = (~torch.isclose(first, again, rtol=TOLERANCE, atol=1e-6, equal_nan=True)).nonzero()
            if len(wrong):
                left = int(wrong[0])
                for _, found in pairs[:alike]:
                    left -= found.values.numel()
                    if left < 0:
                        return found.operator, found.site
        if alike < len(pairs):
            expected, found = pairs[alike]
            return f"{found.operator} instead of {expected.operator}", found.site
        return None


def _print(operator: str, value: torch.Tensor, site: str) -> Print:
    return Print(operator, tuple(value.shape), sample(value, VALUES).float(), site)
