"""Sees the operators of one step: what is born and dies, what is widened, which attention ran, what a checkpoint recomputes.

A ``TorchDispatchMode``: it costs microseconds an operator, so the watcher has it on only for some steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measurement.watching import sites
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.owned import Own, short
from advisor.measurement.watching.policy import NotApproved
from advisor.measurement.watching.recomputing import Recomputing
from advisor.units import show

_ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash", "_scaled_dot_product_efficient_attention": "efficient", "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention_for_cpu": "flash", "_flash_attention_forward": "flash", "_scaled_dot_product_attention_math_for_mps": "math",
}  # fmt: skip
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_PRODUCTS = frozenset({"bmm", "baddbmm", "matmul", "mm"})


def in_backward() -> bool:
    """Whether the autograd engine runs."""
    return bool(torch._C._current_graph_task_id() != -1)


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no types here
    """Observes while it is active. ``seeds``: what is alive already, by storage. ``on_widening`` may raise, in the operator that widens."""

    def __init__(self, seeds: dict[int, Own], *, least: int, vocab: int, step: int, on_widening: Callable[[Finding], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.vocab, self.step = least, vocab, step
        self.phase = "forward"
        self.alive: dict[int, tuple[str, int, str, str]] = {key: (own.part, own.bytes, "", own.dtype) for key, own in seeds.items()}
        self.parts: dict[str, int] = {}
        for part, size, _, _ in self.alive.values():
            self.parts[part] = self.parts.get(part, 0) + size
        self.bytes = sum(self.parts.values())
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.widened: dict[tuple[str, str, str], tuple[int, int]] = {}  # (site, from, to): bytes, times
        self.attention: dict[tuple[str, str], int] = {}  # (backend, site): bytes of the scores
        self.fp16 = False
        self.recomputing: Recomputing | None = None
        self.saw_backward = self.recomputed = False
        self.seeded = frozenset(seeds)
        self._scores: dict[int, tuple[str, int]] = {}
        self._on_widening = on_widening
        self._ended = False
        self.failed: str | None = None
        self._finalisers: dict[int, weakref.finalize[Any, Any]] = {}
        self._look()

    def end(self) -> None:
        """What dies from here on is no longer of this step. Tensors that live on must not keep the observer alive."""
        self._ended = True
        for finaliser in self._finalisers.values():
            finaliser.detach()
        self._finalisers.clear()
        self.recomputing = None

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run the operator and look at what is new."""
        del types
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("aten", "prims") and self.failed is None:
            try:
                self._inspect(function, args, result)
            except (NotApproved, Warning):
                raise
            except Exception as error:  # a fault of the watcher must not become one of the run
                self.failed = f"{type(error).__name__}: {error}"
        return result

    def _inspect(self, function: Any, args: tuple[Any, ...], result: Any) -> None:
        name = function._schema.name.partition("::")[2]
        backward = in_backward()
        phase = "backward" if backward else self.phase
        if backward:
            self.saw_backward = True
            self.recomputed = self.recomputed or torch.is_grad_enabled()
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        for value in outputs:
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                self._see(name, value, args, phase, backward)
        if name in _ATTENTION and not backward:
            self._note_attention(_ATTENTION[name], sites.here(3)[0], 0)
        elif name in _PRODUCTS and not backward and self._scores:
            for value in args[:2]:
                if isinstance(value, torch.Tensor) and (found := self._scores.pop(value.untyped_storage()._cdata, None)) is not None:
                    self._note_attention("math", *found)

    def _see(self, name: str, value: torch.Tensor, args: tuple[Any, ...], phase: str, backward: bool) -> None:
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive or not size:
            if name == "bernoulli_" and self.recomputing is not None:
                self.recomputing.see(name, value, backward)
            return
        if value.dtype == torch.float16:
            self.fp16 = True
        big = size >= self.least
        site, caller = sites.here(4) if big else ("", "")
        part = self._part(name, value, phase)
        self.alive[key] = (part, size, caller if caller else site, short(value.dtype))
        finaliser = weakref.finalize(storage, self._gone, key)
        finaliser.atexit = False
        self._finalisers[key] = finaliser
        self.bytes += size
        self.parts[part] = self.parts.get(part, 0) + size
        self._look(phase)
        if self.recomputing is not None:
            self.recomputing.see(name, value, backward)
        if backward or phase == "step":
            return
        if big and value.is_floating_point():
            self._note_widening(value, args, site)
        if name in _SOFTMAX and value.dim() >= 3 and value.shape[-2] > 1:
            self._scores[key] = (site or sites.here(3)[0], size)

    def _part(self, name: str, value: torch.Tensor, phase: str) -> str:
        if phase == "step":
            return "optimizer"
        if self.vocab and value.dim() >= 2 and value.shape[-1] == self.vocab:
            return "logits"
        return "attention" if name in _SOFTMAX and value.dim() >= 3 else "activations"

    def _note_widening(self, value: torch.Tensor, args: tuple[Any, ...], site: str) -> None:
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel() == value.numel()]
        if not inputs or max(a.element_size() for a in inputs) >= value.element_size():
            return
        key = (site, short(inputs[0].dtype), short(value.dtype))
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

    def _gone(self, key: int) -> None:
        if self._ended or sys.is_finalizing():
            return
        self._finalisers.pop(key, None)
        part, size, _, _ = self.alive.pop(key)
        self.bytes -= size
        self.parts[part] -= size
        self._scores.pop(key, None)

    def _look(self, phase: str | None = None) -> None:
        phase = phase or self.phase
        if self.bytes > self.peaks.get(phase, (-1, {}))[0]:
            self.peaks[phase] = (self.bytes, {part: size for part, size in self.parts.items() if size})
