"""``with advisor.watch(model, optimizer) as seen:`` around a training loop: what is held twice, widened, kept, or not recomputed.

Most steps only pass four hooks. Some steps are observed operator by operator: the first :data:`FIRST`, then one whenever what watching has cost
so far is below :data:`BUDGET` of the time that has passed. ``level="full"`` observes every step.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from advisor.measurement.eventlog import VERSION, EventLog
from advisor.measurement.watching import configured, copies, growth, holders, owned, sites, underflow
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.observer import Observer, in_backward
from advisor.measurement.watching.policy import NotApproved, Policy
from advisor.measurement.watching.recomputing import Recomputing
from advisor.units import show

FIRST = 4  # the first makes the optimizer's state; a growth needs three boundaries after it
BUDGET = 0.02  # of the time that has passed: what watching may cost, once the first steps are over
SMALLEST = 4096  # bytes below which nothing is worth a finding
SHARE = 0.001  # of the model's state, likewise


def watch(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, log: Path | str | None = None, policy: Policy | None = None,
    level: Literal["default", "full"] = "default", least: int | None = None, checkpointing: bool | None = None,
) -> Watch:  # fmt: skip
    """Watch the steps within the ``with`` block.

    ``log``: a file for the events (``advisor events FILE`` reads it). ``policy``: warns or raises for what is not approved. ``least``: bytes from
    which a tensor counts (default: 0.1 % of the model's state, at least 4 KiB). ``checkpointing``: whether it is meant to be on; ``None``: as the
    model's switches say.
    """
    return Watch(model, optimizer, log=log, policy=policy, level=level, least=least, checkpointing=checkpointing)


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """A fault of the watcher ends the watching, not the training; what the policy raises passes."""

    @functools.wraps(hook)
    def call(self: Watch, *args: Any) -> None:
        if self.failed is not None:
            return
        try:
            hook(self, *args)
        except (NotApproved, Warning):
            raise
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            self.event("watcher-failed", "warning", error=self.failed[:300])
            if self._active and self._observer is not None:
                self._active = False
                self._observer.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    return call


class Watch:
    """A watched run. ``findings`` are faults, ``notes`` what is worth knowing; both are complete when the block ends."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, *, log: Path | str | None, policy: Policy | None,
        level: str, least: int | None, checkpointing: bool | None,
    ) -> None:  # fmt: skip
        self.model, self.policy, self.level = model, policy or Policy("allow", "allow"), level
        self.optimizer: torch.optim.Optimizer | None = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.running = False
        self.failed: str | None = None  # why the watcher itself gave up, where it did
        self.step = 0
        self.observed = 0
        self._log = EventLog(log) if log is not None else None
        self._least, self._asked = least, checkpointing
        self._hooks: list[Any] = []
        self._observer: Observer | None = None
        self._block_hooks: list[Any] = []
        self._scans: list[growth.Scan] = []
        self._rates: dict[str, list[underflow.Rates]] = {}
        self._known: set[tuple[str, str, str | None, str]] = set()
        self._new_step, self._scanned_copies = True, False
        self._began = self._spent = self._step_began = 0.0
        self._plain: list[float] = []

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._began = time.monotonic()
        self._hooks.append(self.model.register_forward_pre_hook(self._forward_begins))
        self._hooks.append(self.model.register_forward_hook(self._forward_ends))
        if self.optimizer is not None:
            self._hooks.append(self.optimizer.register_step_pre_hook(self._step_begins))
            self._hooks.append(self.optimizer.register_step_post_hook(self._step_ends))
        self.running = True
        self.event("start", version=VERSION, torch=torch.__version__, level=self.level, stored_bytes=owned.stored_bytes(self.model))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The last boundary, and the end."""
        self.running = False
        for hook in (*self._hooks, *self._block_hooks):
            hook.remove()
        if self._observer is not None and self._active:
            self._last_look()
        if kind is None or not issubclass(kind, NotApproved):
            with suppress(NotApproved, Warning):
                self._last_boundary()
        if error is not None:
            self.event("failed", "warning", error=kind.__name__ if kind else "", phase=self._observer.phase if self._observer else None)
        self.event("end", steps=self.step, observed=self.observed, seconds=round(time.monotonic() - self._began, 3), peaks=self.peak_bytes())
        if self._log is not None:
            self._log.close()

    def event(self, kind: str, level: str = "note", **values: Any) -> None:
        """Write to the log, where there is one."""
        if self._log is not None:
            self._log.write(kind, level, **values)

    def peak_bytes(self) -> dict[str, int]:
        """The largest live bytes of each phase, of the observed steps."""
        return {phase: size for phase, (size, _) in self.peaks.items()}

    # what the hooks call

    @_guarded
    def _forward_begins(self, *_: Any) -> None:
        if in_backward():
            return
        if self._new_step:
            self._new_step = False
            self._boundary()
            self._step_began = time.monotonic()
            if self._due():
                self._observe()
        elif self._observer is not None:
            self._observer.phase = "forward"

    @_guarded
    def _forward_ends(self, *_: Any) -> None:
        if self._observer is not None and not in_backward():
            self._observer.phase = "loss"

    @_guarded
    def _step_begins(self, *_: Any) -> None:
        if self._active and self._observer is not None:
            self._observer.phase = "step"
            self._look_at_gradients(self._observer)

    @_guarded
    def _step_ends(self, *_: Any) -> None:
        seconds = time.monotonic() - self._step_began
        if self._active:
            self._stop_observing()
            usual = sorted(self._plain)[len(self._plain) // 2] if self._plain else seconds / 2
            self._spent += max(0.0, seconds - usual)
        elif self._step_began:
            self._plain = [*self._plain[-30:], seconds]
        self.step += 1
        self._new_step = True

    # observing

    _active = False

    def _due(self) -> bool:
        if self.level == "full" or self.policy.raises or self.step < FIRST:
            return True
        return self._spent < BUDGET * (time.monotonic() - self._began)

    def _observe(self) -> None:
        seeds = owned.by_storage(self.model, self.optimizer)
        if self._least is None or not self.step:
            state = sum(own.bytes for own in seeds.values())
            self._least = self._least or max(SMALLEST, int(SHARE * state))
        self._observer = Observer(
            seeds, least=self._least, vocab=configured.vocabulary(self.model), step=self.step, on_widening=self.policy.judge,
        )  # fmt: skip
        chosen = configured.blocks(self.model)
        if chosen:
            name, block = chosen[self.observed % len(chosen)]
            recomputing = self._observer.recomputing = Recomputing(name)
            self._block_hooks = [
                block.register_forward_pre_hook(lambda *_: recomputing.enter(in_backward())),
                block.register_forward_hook(lambda *_: recomputing.leave(), always_call=True),
            ]
        self.observed += 1
        self._active = True
        self._observer.__enter__()  # type: ignore[no-untyped-call]  # torch ships no types here

    def _stop_observing(self) -> None:
        observer, self._active = self._observer, False
        assert observer is not None
        observer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if observer.failed is not None:
            raise RuntimeError(observer.failed)
        for hook in self._block_hooks:
            hook.remove()
        self._block_hooks = []
        for phase, (size, parts) in observer.peaks.items():
            if size > self.peaks.get(phase, (-1, {}))[0]:
                self.peaks[phase] = (size, parts)
        self.event("step", step=self.step, peaks={phase: size for phase, (size, _) in observer.peaks.items()}, parts=max(observer.peaks.values())[1])
        for key, (size, times) in observer.widened.items():
            self._found(observer.widening(key, size, times))
        for (backend, site), size in observer.attention.items():
            self.event("attention", step=self.step, backend=backend, where=site)
            if backend == "math":
                title = f"the whole score matrix is made: no fused attention kernel ran ({show(size)} of scores a step)"
                self._found(Finding("attention-fallback", title, site, size, part="attention", step=self.step))
        self._look_at_checkpoints(observer)

    def _look_at_checkpoints(self, observer: Observer) -> None:
        again = observer.recomputing
        if again is not None and again.differs is not None:
            operator, site = again.differs
            title = f"the recomputation of {again.block} differs from its forward pass, first at {operator}: its gradients are wrong"
            self._found(Finding("checkpoint-differs", title, site, name=again.block, step=self.step))
        asked = configured.checkpointing(self.model)
        if self._asked is True and asked is None:
            asked = ("checkpointing=True", configured.where(self.model))
        if asked is not None and self._asked is not False and observer.saw_backward and not observer.recomputed:
            title = f"{asked[0]} is on, yet the backward pass recomputed nothing: every activation is kept"
            self._found(Finding("checkpointing-broken", title, asked[1], observer.peaks.get("backward", (0, {}))[1].get("activations", 0), step=self.step))

    def _look_at_gradients(self, observer: Observer) -> None:
        if not observer.fp16:
            return
        rows = configured.embeddings(self.model)
        worst: list[tuple[str, underflow.Rates]] = []
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            if gradient is None or gradient.dim() < 2 or id(parameter) in rows:
                continue
            with torch.utils._python_dispatch._disable_current_modes():
                found = underflow.rates(holders.plain(gradient))
            if gradient.dtype != torch.float16:
                found = underflow.Rates(found.zero, 0.0)  # after unscaling small values are meant
            seen = self._rates.setdefault(name, [])
            seen.append(found)
            if underflow.lost(seen):
                worst.append((name, found))
        if worst:
            name, found = max(worst, key=lambda item: item[1].zero)
            shares = f"{found.zero:.0%} zeros, {found.subnormal:.0%} of the others subnormal"
            title = f"fp16 gradients underflow in {len(worst)} layers, worst {name}: {shares}; scale the loss"
            self._found(Finding("gradient-underflow", title, sites.here(2)[1], dtype="fp16", part="gradients", name=name, step=self.step))

    # between steps

    def _boundary(self) -> None:
        """Look at everything alive, where the last step was observed or nothing has been looked at yet."""
        observer, self._observer = self._observer, None
        if observer is None and self._scanned_copies:
            return
        began = time.monotonic()
        seeds = owned.by_storage(self.model, self.optimizer)
        least = self._least or max(SMALLEST, int(SHARE * sum(own.bytes for own in seeds.values())))
        fresh = {} if observer is None else {key: size for key, (_, size, _, _) in observer.alive.items() if key not in seeds and key not in observer.seeded}
        if observer is not None:
            observer.end()
        strangers = self._strangers(set(seeds))
        mine = [self.model, *self.model.modules(), self.optimizer, *([self.optimizer.state] if self.optimizer is not None else []), strangers, self]
        held = holders.holders({id(t) for t in strangers}, mine)
        found = copies.find(self.model, self.optimizer, strangers, held, least, self.step)
        if any(f.name == holders.NOBODY.name for f in found) and gc.collect():
            strangers[:] = self._strangers(set(seeds))  # what only a cycle held was garbage already
            found = copies.find(self.model, self.optimizer, strangers, held, least, self.step)
        for finding in found:
            self._found(finding)
        self._scanned_copies = True
        if self.step:
            self._scans = [*self._scans[-growth.SCANS + 1 :], growth.scan(strangers, held, fresh)]
            peak = max((size for size, _ in self.peaks.values()), default=0)
            for finding in growth.find(self._scans, sum(fresh.values()), peak, least, self.step):
                self._found(finding)
        self._spent += time.monotonic() - began if self.step >= FIRST else 0

    @_guarded
    def _last_look(self) -> None:
        self._stop_observing()

    @_guarded
    def _last_boundary(self) -> None:
        self._boundary()

    def _strangers(self, own: set[int]) -> list[torch.Tensor]:
        return [t for t in holders.live_tensors() if (key := holders.storage_of(t)) is not None and key not in own]

    def _found(self, finding: Finding) -> None:
        key = (finding.kind, finding.where, finding.name, finding.level)
        if key in self._known:
            return
        self._known.add(key)
        (self.findings if finding.level == "warning" else self.notes).append(finding)
        self.event("finding", finding.level, **{("cause" if k == "kind" else k): v for k, v in finding.to_json().items() if k != "level"})
        if finding.kind != "framework-upcast":  # judged where it happened
            self.policy.judge(finding)
