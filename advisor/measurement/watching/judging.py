"""What an observed step shows: widened tensors, attention that fell back, checkpoints that do not recompute, gradients that underflow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from advisor.measurement.watching import configured, sites, underflow
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.living import plain
from advisor.measurement.watching.observer import Observer
from advisor.measurement.watching.replaying import Outcome
from advisor.units import show


def kernels(observer: Observer) -> Iterator[Finding]:
    """Places that widen, and attention without a fused kernel."""
    for key, (size, times) in observer.widened.items():
        yield observer.widening(key, size, times)
    for (backend, site), size in observer.attention.items():
        if backend == "math":
            title = f"the whole score matrix is made: no fused attention kernel ran ({show(size)} of scores a step)"
            yield Finding("attention-fallback", title, site, size, part="attention", step=observer.step)


def checkpoints(observer: Observer, model: torch.nn.Module, asked: bool | None, again: Outcome | None = None) -> Iterator[Finding]:
    """Checkpointing that is on and recomputes nothing, or something else. ``asked``: whether it is meant to be on; ``None``: as the switches say.

    ``again``: what running the sampled block once more, with and without its checkpoint, has shown.
    """
    yield from _recomputation(observer, again)
    if asked is False or not observer.saw_backward or observer.recomputed:
        return
    switch = configured.checkpointing(model)
    if switch is None and asked:
        switch = ("checkpointing=True", configured.where(model))
    if switch is not None:
        title = f"{switch[0]} is on, yet the backward pass recomputed nothing: every activation is kept"
        kept = observer.tally.peaks().get("backward", (0, {}))[1].get("activations", 0)
        yield Finding("checkpointing-broken", title, switch[1], kept, step=observer.step)


def _recomputation(observer: Observer, again: Outcome | None) -> Iterator[Finding]:
    ran = observer.recomputing
    if ran is None:
        return
    gradients = again.differs if again is not None else {}
    operator = ran.differs() or (again.operator if again is not None else None)
    where = operator[1] if operator is not None else ran.where
    if operator is not None or gradients:
        computed = "differs from its forward pass" + (f", first at {operator[0]}" if operator is not None else "")
        name, share = max(gradients.items(), key=lambda item: item[1], default=("", 0.0))
        wrong = (
            f"{len(gradients)} of {again.gradients} gradients come out wrong, {name} by {share:.1%} of its largest value" if again is not None and name else ""
        )
        same = "in a run with and without it the gradients were the same" if again is not None else "its gradients are wrong"
        yield Finding("checkpoint-differs", f"the recomputation of {ran.block} {computed}: {wrong or same}", where, name=ran.block, step=observer.step)
    if again is not None and again.buffers:
        title = (
            f"{ran.block} changes {again.buffers[0]} ({len(again.buffers)} buffers) in its forward pass, and so twice a step: the recomputation does it again"
        )
        yield Finding("checkpoint-differs", title, ran.where, name=again.buffers[0], step=observer.step, level="note")


WORST = 20  # layers of the log


class Gradients:
    """Rates of zeros and subnormals among gradients, from look to look."""

    def __init__(self) -> None:
        self._seen: dict[str, list[underflow.Rates]] = {}

    def worst(self) -> dict[str, dict[str, float]]:
        """Of the last look, the shares of the :data:`WORST` layers with most zeros, then most subnormals."""
        last = sorted(((name, seen[-1]) for name, seen in self._seen.items()), key=lambda item: (-item[1].zero, -item[1].subnormal))
        return {name: {"zero": round(rates.zero, 4), "subnormal": round(rates.subnormal, 4)} for name, rates in last[:WORST]}

    def look(self, model: torch.nn.Module, step: int, *, scaled: bool) -> Finding | None:
        """Look at the gradients as the optimizer is about to read them. ``scaled``: in fp16, where zeros are what was too small."""
        rows = configured.embeddings(model)
        names, gradients = [], []
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.grad.dim() >= 2 and id(parameter) not in rows:
                names.append(name)
                gradients.append(plain(parameter.grad))
        with torch.utils._python_dispatch._disable_current_modes():
            rates = underflow.rates(gradients)
        worst: list[tuple[str, underflow.Rates]] = []
        for name, gradient, found in zip(names, gradients, rates, strict=True):
            if gradient.dtype != torch.float16:
                found = underflow.Rates(found.zero, 0.0)  # after unscaling small values are meant
            seen = self._seen.setdefault(name, [])
            seen[:] = [*seen[-1:], found]
            if scaled and underflow.lost(seen):
                worst.append((name, found))
        if not worst:
            return None
        name, found = max(worst, key=lambda item: item[1].zero)
        shares = f"{found.zero:.0%} zeros, {found.subnormal:.0%} of the others subnormal"
        title = f"fp16 gradients underflow in {len(worst)} layers, worst {name}: {shares}; scale the loss"
        return Finding("gradient-underflow", title, sites.caller(2), dtype="fp16", part="gradients", name=name, step=step)
