"""Between two steps: everything alive is looked at, for copies of what the model and the optimizer own and for what grows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch

from advisor.measurement.watching import copies, growth, holders, living
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.observer import Observer

SMALL = 64  # bytes below which a tensor without a graph (a counter, a seed) is not asked whose it is


class Boundaries:
    """What the boundaries so far have shown. It holds no tensor from one to the next."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, mine: object) -> None:
        self.model, self.optimizer, self._mine = model, optimizer, mine
        self._scans: list[growth.Scan] = []
        self._living = living.Living()
        self._others: list[weakref.ref[torch.Tensor]] = []

    def look(self, own: Iterable[int], observer: Observer | None, *, least: int, step: int, peak: int, soon: bool = False) -> list[Finding]:
        """Findings before ``step`` begins. ``own``: storages of model and optimizer; ``observer``: of the step that has ended; ``peak``: bytes.

        ``soon``: the next look is some steps away at most.
        """
        owned = set(own)
        fresh: dict[int, int] = {}
        if observer is not None:
            fresh = {key: size for key, (_, size, birth) in observer.tally.alive.items() if birth and key not in owned}
        strangers = self._strangers(owned, soon)
        found, held = self._copies(strangers, least, step)
        if any(f.name == holders.NOBODY.name for f in found) and gc.collect():  # what only a cycle held was garbage already
            strangers = self._strangers(owned, soon)
            found, held = self._copies(strangers, least, step)
        self._others = [weakref.ref(t) for t in strangers if t.grad_fn is None and held.get(id(t), holders.NOBODY).module]
        if step:
            self._scans = [*self._scans[-growth.SCANS + 1 :], growth.scan(strangers, held, fresh)]
            found += growth.find(self._scans, sum(fresh.values()), peak, least, step)
        return found

    def _copies(self, strangers: list[torch.Tensor], least: int, step: int) -> tuple[list[Finding], dict[int, holders.Holder]]:
        mine = [self.model, *self.model.modules(), self.optimizer, *([self.optimizer.state] if self.optimizer is not None else []), strangers, self._mine]
        held = holders.holders({id(t) for t in strangers if t.grad_fn is not None or t.untyped_storage().nbytes() >= SMALL}, mine, self.model)
        return copies.find(self.model, self.optimizer, strangers, held, least, step), held

    def others(self) -> list[torch.Tensor]:
        """What other models held at the last look, and hold still."""
        return [tensor for ref in self._others if (tensor := ref()) is not None]

    def close(self) -> None:
        """No other look comes."""
        self._living.deaf()

    def _strangers(self, own: set[int], soon: bool) -> list[torch.Tensor]:
        return [t for t in self._living.tensors(soon=soon) if (key := living.storage_of(t)) is not None and key not in own]
