"""Sees the operators of one step: what is born and dies, what is widened, which attention ran, what a checkpoint recomputes.

A ``TorchDispatchMode``: it costs some microseconds an operator, so what it asks of each is asked once and remembered (:mod:`operators`), and
views and in-place operators, which allocate nothing, pass at once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measurement.watching import gathering, sites
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.living import plain
from advisor.measurement.watching.operators import Traits, traits
from advisor.measurement.watching.owned import Own, short
from advisor.measurement.watching.policy import NotApproved
from advisor.measurement.watching.recomputing import Recomputing
from advisor.measurement.watching.tally import Tally
from advisor.units import show

_in_graph = torch._C._current_graph_task_id


def in_backward() -> bool:
    """Whether the autograd engine runs."""
    return bool(_in_graph() != -1)


class _Death(weakref.ref):  # type: ignore[type-arg]  # a storage's; weakref.finalize does the same in six times the time
    __slots__ = ("key",)
    key: int


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no types here
    """Observes while it is active. ``seeds``: what is alive already, by storage. ``on_widening`` may raise, in the operator that widens."""

    def __init__(self, seeds: dict[int, Own], *, least: int, vocab: int, step: int, on_widening: Callable[[Finding], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.vocab, self.step = least, vocab, step
        self.tally = Tally({key: (own.part, own.bytes) for key, own in seeds.items()})
        self.phase = "forward"
        self.widened: dict[tuple[str, str, str], tuple[int, int]] = {}  # (site, from, to): bytes, times
        self.attention: dict[tuple[str, str], int] = {}  # (backend, site): bytes of the scores
        self.fp16 = False
        self.recomputing: Recomputing | None = None
        self.saw_backward = self.recomputed = False
        self.failed: str | None = None
        self.divided = False  # FSDP divides the model: what it gathers and reduces is told apart
        self._scores: dict[int, tuple[str, int]] = {}
        self._on_widening = on_widening
        self._deaths: dict[int, _Death] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What ``torch.compile`` has compiled stays compiled while it is observed (torch 2.10 asks; before, it fell back to eager)."""
        return True

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Of what is alive already, these may die within the step: gradients of the step before, where a loop frees them after its forward pass."""
        for tensor in tensors:
            storage = plain(tensor).untyped_storage()
            if storage._cdata in self.tally.alive:
                self._follow(storage)

    def _follow(self, storage: torch.UntypedStorage) -> None:
        death = self._deaths[storage._cdata] = _Death(storage, self._gone)
        death.key = storage._cdata

    def end(self) -> None:
        """What dies from here on is no longer of this step. Tensors that live on must not keep the observer alive."""
        self._deaths.clear()
        self.recomputing = None

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run the operator and look at what is new."""
        del types
        result = function(*args, **(kwargs or {}))
        known = traits(function)
        if known is not None and self.failed is None:
            try:
                self._inspect(known, args, result)
            except (NotApproved, Warning):
                raise
            except Exception as error:  # a fault of the watcher must not become one of the run
                self.failed = f"{type(error).__name__}: {error}"
        elif self.divided and function.namespace == "fsdp" and function._schema.name.endswith(gathering.REDUCED):
            self.tally.gradients(plain(t).untyped_storage()._cdata for t in args[0])  # made as any tensor, and only now known to be gradients
        if known is None and self.recomputing is not None and self.recomputing.running:
            self.recomputing.communicates |= function.namespace.startswith(("c10d", "_c10d"))
        return result

    def _inspect(self, known: Traits, args: tuple[Any, ...], result: Any) -> None:
        backward = _in_graph() != -1
        if backward:
            self.saw_backward = True
            self.recomputed = self.recomputed or torch.is_grad_enabled()
        phase = "backward" if backward else self.phase
        if isinstance(result, torch.Tensor):
            self._see(known, result, args, phase, backward)
        elif isinstance(result, (tuple, list)):
            for value in result:
                if isinstance(value, torch.Tensor):
                    self._see(known, value, args, phase, backward)
        if not backward:
            if known.attention is not None:
                self._note_attention(known.attention, sites.here(3), 0)
            elif known.product and self._scores:
                for value in args[:2]:
                    if isinstance(value, torch.Tensor) and (found := self._scores.pop(value.untyped_storage()._cdata, None)) is not None:
                        self._note_attention("math", *found)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size: FSDP gathers into it, or frees what it gathered."""
        key, size = storage._cdata, storage.nbytes()
        if self.failed is not None or self.tally.alive.get(key, ("", 0, 0))[1] == size:
            return
        if key in self.tally.alive:
            self.tally.gone(key)
        if size:
            self.tally.born(key, "communication", size, "backward" if in_backward() else self.phase)
            if key not in self._deaths:
                self._follow(storage)

    def _see(self, known: Traits, value: torch.Tensor, args: tuple[Any, ...], phase: str, backward: bool) -> None:
        if type(value) is not torch.Tensor:
            value = plain(value)
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        new = key not in self.tally.alive and size and not value.is_meta
        if self.recomputing is not None and self.recomputing.running and (new or known.draws):
            self.recomputing.see(known.name, value, backward)
        if not new:
            return
        self.tally.born(key, self._part(known, value, phase), size, phase)
        self._follow(storage)
        if backward or phase == "step":
            return
        if value.dtype is torch.float16:
            self.fp16 = True
        if size >= self.least and args:
            self._note_widening(value, args)
        if known.softmax and value.dim() >= 3 and value.shape[-2] > 1:
            self._scores[key] = (sites.here(4), size)

    def _part(self, known: Traits, value: torch.Tensor, phase: str) -> str:
        if self.divided and gathering.by_fsdp():
            return "communication"
        if phase == "step":
            return "optimizer"
        if self.vocab and value.dim() >= 2 and value.shape[-1] == self.vocab:
            return "logits"
        return "attention" if known.softmax and value.dim() >= 3 else "activations"

    def _note_widening(self, value: torch.Tensor, args: tuple[Any, ...]) -> None:
        wide, count = value.element_size(), value.numel()
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel() == count]
        if not inputs or not value.is_floating_point() or max(a.element_size() for a in inputs) >= wide:
            return
        key = (sites.here(5), short(inputs[0].dtype), short(value.dtype))
        size, times = self.widened.get(key, (0, 0))
        now = value.untyped_storage().nbytes()
        self.widened[key] = (size + now, times + 1)
        if not times:
            self._on_widening(self.widening(key, now, 1))

    def widening(self, key: tuple[str, str, str], size: int, times: int) -> Finding:
        """The finding of one place that widens."""
        site, narrow, wide = key
        often = f", {times} times a step" if times > 1 else ""
        return Finding(
            "framework-upcast", f"a tensor is widened from {narrow} to {wide} ({show(size)}{often})", site, size, wide, "activations", step=self.step
        )

    def _note_attention(self, backend: str, site: str, size: int) -> None:
        self.attention[backend, site] = self.attention.get((backend, site), 0) + size

    def _gone(self, death: _Death) -> None:
        if sys.is_finalizing() or self._deaths.pop(death.key, None) is None:
            return
        if death.key in self.tally.alive:  # else it was resized to nothing
            self.tally.gone(death.key)
        self._scores.pop(death.key, None)
