"""Checkpoint verification by gradients: a sampled block is run with and without its checkpoint, and both must give the same gradients.

Both runs begin with the same random states, inputs and incoming gradient (random numbers from a generator of its own). They run on aliases of
the parameters and copies of the buffers, so nothing reaches ``.grad``, DDP's hooks or BatchNorm's statistics; what else a forward changes is put
back (:mod:`restoring`). What can not be run again without an effect on others is left out, with its reason (:mod:`checkpointed`).

Memory: the step is over, its activations are gone. Two runs hold at once what the block makes, its gradients twice, its inputs and the copied
buffers; where that does not fit below the step's own peak (or :data:`ALLOWED`), nothing is run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import checkpoint as torchs
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measurement.watching.checkpointed import Call, Unfit, refuse
from advisor.measurement.watching.observer import in_backward
from advisor.measurement.watching.operators import traits
from advisor.measurement.watching.recomputing import Recomputing
from advisor.measurement.watching.restoring import Before, bytes_of
from advisor.units import show

ALLOWED = 50 * 1000 * 1000  # bytes that watching may add in any case: what is asked of it
ROUNDING = {torch.float32: 1.3e-6, torch.bfloat16: 1.6e-2, torch.float16: 1e-3, torch.float64: 1e-7}  # torch.testing.assert_close, rtol by dtype
INPUT = "input"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay showed. ``differs``: by gradient, the largest difference over the largest value. ``buffers``: what a recomputation changes once more."""

    gradients: int
    exact: bool  # bit for bit
    bytes: int  # that it may have held, at most
    differs: dict[str, float] = field(default_factory=dict)
    operator: tuple[str, str] | None = None  # the first that computed something else the second time, and its line
    buffers: tuple[str, ...] = ()


def replay(call: Call, model: torch.nn.Module, block: torch.nn.Module, *, name: str, made: int, room: int) -> Outcome:
    """Run both ways and compare. ``made``: bytes that the block's forward pass makes; ``room``: bytes below the step's peak.

    Raises:
        Unfit: it can not be compared, with the reason.
    """
    refuse(model, block)
    trained = sum(p.numel() * p.element_size() for p in block.parameters() if p.requires_grad)
    inputs = sum(t.numel() * t.element_size() for t in call.tensors())
    need = 2 * (made + trained) + 4 * inputs + 3 * bytes_of(model)  # kept or computed again, and its gradients; copies before and in two runs
    if need > max(room, ALLOWED):
        raise Unfit(f"it may need {show(need)} more, and {show(max(room, ALLOWED))} are left below the step's peak")
    before = Before(model, [t.device for t in (*call.tensors(), *block.parameters())])
    runs = _Runs(call, model, before)
    try:
        kept, _, kept_buffers = runs.run(None)
        again, operator, buffers = runs.run(Recomputing(name))
        differs, exact = _compared(kept, again)
        if differs and operator is None and _compared(kept, runs.run(None)[0])[0]:
            raise Unfit("two runs without a checkpoint differ as well, so gradients prove nothing here")
    except torch.OutOfMemoryError:
        raise Unfit(f"memory ran out ({show(need)} may be needed)") from None
    except RuntimeError as error:
        raise Unfit(f"it can not be run by itself: {str(error).splitlines()[0][:200]}") from None
    finally:
        before.put_back()
    twice = tuple(n for n, value in buffers.items() if not _same(value, kept_buffers[n]))
    return Outcome(sum(value is not None for value in kept.values()), exact, need, differs, operator, twice)


Gradients = dict[str, torch.Tensor | None]


class _Runs:
    def __init__(self, call: Call, model: torch.nn.Module, before: Before) -> None:
        self.call, self.model, self.before = call, model, before

    def run(self, recomputing: Recomputing | None) -> tuple[Gradients, tuple[str, str] | None, dict[str, torch.Tensor]]:
        """Gradients by name, the first operator that recomputed otherwise, and the buffers after it; ``None``: without a checkpoint."""
        self.before.put_back()
        leaves = {n: torch.nn.Parameter(p.detach()) for n, p in self.model.named_parameters() if p.requires_grad}
        buffers = {n: b.detach().clone() for n, b in self.model.named_buffers() if not b.is_meta}
        inputs: dict[str, torch.Tensor] = {}

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            leaf = tensor.detach().requires_grad_(tensor.requires_grad)
            if leaf.requires_grad:
                inputs[f"{INPUT} {len(inputs) + 1}"] = leaf
            return leaf.clone()  # a block may change its input in place

        function, args, kwargs = self.call.with_tensors(fresh)
        seen = contextlib.nullcontext() if recomputing is None or self.call.selective else _Noting(recomputing)
        if recomputing is not None:
            function = _marked(function, recomputing)
        named = {**leaves, **inputs}

        def whole() -> Gradients:
            with _autocast(self.call), seen:
                result = function(*args, **kwargs) if recomputing is None else torchs.checkpoint(function, *args, **self.call.options, **kwargs)
            outputs = [t for t in _leaves(result) if t.requires_grad]
            incoming = [_incoming(t) for t in outputs]
            if recomputing is not None and self.call.options.get("use_reentrant") is not False:
                with seen:
                    if outputs:
                        torch.autograd.backward(outputs, incoming)  # its recomputation takes no list of inputs
                return {n: t.grad for n, t in named.items()}
            with seen:
                found = torch.autograd.grad(outputs, [*named.values()], incoming, allow_unused=True) if outputs else [None] * len(named)
            return dict(zip(named, found, strict=True))

        given = {f"model.{n}": t for n, t in {**leaves, **buffers}.items()}
        with torch.enable_grad():
            gradients: Gradients = torch.func.functional_call(_Whole(self.model, whole), given, ())
        return gradients, None if recomputing is None or self.call.selective else recomputing.differs(), buffers


class _Whole(torch.nn.Module):
    """Forward and backward in one call: a recomputation in the backward pass must meet the same parameters."""

    def __init__(self, model: torch.nn.Module, run: Callable[[], Gradients]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self) -> Gradients:
        """Run it."""
        return self.run()


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships no types here
    """Notes what the operators of the checkpointed function make, the first time and again."""

    def __init__(self, recomputing: Recomputing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recomputing = recomputing

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run the operator, and note what it made."""
        del types
        result = function(*args, **(kwargs or {}))
        if self.recomputing.running and (known := traits(function)) is not None:
            for value in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    self.recomputing.see(known.name, value, in_backward())
        return result


def _marked(function: Callable[..., Any], recomputing: Recomputing) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        recomputing.enter(in_backward())
        try:
            return function(*args, **kwargs)
        finally:
            recomputing.leave()

    return call


def _autocast(call: Call) -> contextlib.AbstractContextManager[Any]:
    if call.autocast is None:
        return contextlib.nullcontext()
    device, dtype, cache = call.autocast
    return torch.autocast(device, dtype=dtype, cache_enabled=cache)


def _incoming(output: torch.Tensor) -> torch.Tensor:
    """The same at every run, and no constant: a normalisation's gradient of a constant is zero. The run's own generator is not asked."""
    own = torch.Generator(device=output.device).manual_seed(0)
    return torch.randn(output.shape, generator=own, device=output.device).to(output.dtype)


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for each in inside for tensor in _leaves(each)]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that what is no number is the same as itself."""
    return a.shape == b.shape and torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _compared(kept: Gradients, again: Gradients) -> tuple[dict[str, float], bool]:
    """Those that differ by more than rounding, and whether all are the same bit for bit."""
    differs, exact = dict[str, float](), True
    for name, first in kept.items():
        second = again[name]
        if first is None and second is None:
            continue
        if first is None or second is None:
            differs[name], exact = 1.0, False
        elif not _same(first, second):
            exact = False
            largest = float(first.abs().max())
            share = float((first - second).abs().max()) / largest if largest else float("inf")
            if not share <= ROUNDING.get(first.dtype, 0.0):
                differs[name] = share
    return differs, exact
