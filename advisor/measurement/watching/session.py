"""``with advisor.watch(model, optimizer) as seen:`` around a training loop: what is held twice, widened, kept, or not recomputed.

Most steps only pass four hooks. Some are observed operator by operator (:mod:`pacing` says which): at the default level as many as 2 % of the
time allow, with ``level="full"`` as many as 22 % do, which on a model of some size are nearly all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from advisor.measurement.eventlog import VERSION, EventLog
from advisor.measurement.watching import configured, judging, owned
from advisor.measurement.watching.boundary import Boundaries
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.observer import Observer, in_backward
from advisor.measurement.watching.pacing import FIRST, Pace
from advisor.measurement.watching.policy import NotApproved, Policy
from advisor.measurement.watching.recomputing import Recomputing

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
            self._leave()

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
        self.step = self.observed = 0
        self._log = EventLog(log) if log is not None else None
        self._least, self._asked = least, checkpointing
        self._hooks: list[Any] = []
        self._block_hooks: list[Any] = []
        self._observer: Observer | None = None
        self._active = False  # the observer sees operators now
        self._boundaries = Boundaries(model, self.optimizer, self)
        self._gradients = judging.Gradients()
        self._blocks = configured.blocks(model)
        self._vocabulary = configured.vocabulary(model)
        self._recomputes = False
        self._known: set[tuple[str, str, str | None, str]] = set()
        self._new_step, self._looked = True, False
        self._pace = Pace(level == "full", self.policy.raises)
        self._step_began = 0.0

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._pace = Pace(self._pace.full, self._pace.every)
        self._hooks.append(self.model.register_forward_pre_hook(self._forward_begins, with_kwargs=True))
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
        phase = self._observer.phase if self._observer is not None else None
        if self._active:
            self._stop_observing()
        if kind is None or not issubclass(kind, NotApproved):
            with suppress(NotApproved, Warning):
                self._boundary()
        if error is not None:
            self.event("failed", "warning", error=kind.__name__ if kind else "", phase=phase)
        self.event("end", steps=self.step, observed=self.observed, seconds=round(time.monotonic() - self._pace.began, 3), peaks=self.peak_bytes())
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
    def _forward_begins(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward():
            return
        if self._new_step:
            self._new_step = False
            self._boundary()
            self._step_began = time.monotonic()
            if self._pace.observe(self.step):
                self._observe([*args, *kwargs.values()])
        elif self._observer is not None:
            self._observer.phase = "forward"

    @_guarded
    def _forward_ends(self, *_: Any) -> None:
        if self._observer is not None and not in_backward():
            self._observer.phase = "loss"

    @_guarded
    def _step_begins(self, *_: Any) -> None:
        observer = self._observer
        if not self._active or observer is None:
            return
        observer.phase = "step"
        observer.tally.gradients(own for own, known in owned.by_storage(self.model, None).items() if known.part == "gradients")
        if observer.fp16 and (lost := self._gradients.look(self.model, self.step)) is not None:
            self._found(lost)
        if self._pace.full and self.step >= FIRST and not self._pace.look(self.step):
            self._stop_observing()  # the step is some operators for each parameter, and always the same

    @_guarded
    def _step_ends(self, *_: Any) -> None:
        observed = self._observer is not None
        if self._active:
            self._stop_observing()
        if self._step_began:
            self._pace.over(time.monotonic() - self._step_began, observed=observed)
        self.step += 1
        self._new_step = True

    # observing

    def _observe(self, inputs: list[Any]) -> None:
        seeds = owned.by_storage(self.model, self.optimizer)
        least = self._threshold(seeds)
        for tensor in inputs:  # the batch lives as long as the step
            if isinstance(tensor, torch.Tensor) and (given := owned.of(tensor, "activations", "inputs")) is not None:
                seeds.setdefault(*given)
        self._observer = Observer(seeds, least=least, vocab=self._vocabulary, step=self.step, on_widening=self.policy.judge)
        if self._blocks and (self.observed < FIRST or self._recomputes):
            name, block = self._blocks[self.observed % len(self._blocks)]
            recomputing = self._observer.recomputing = Recomputing(name)
            self._block_hooks = [
                block.register_forward_pre_hook(lambda *_: recomputing.enter(in_backward())),
                block.register_forward_hook(lambda *_: recomputing.leave(), always_call=True),
            ]
        self.observed += 1
        self._active = True
        self._observer.__enter__()  # type: ignore[no-untyped-call]  # torch ships no types here

    def _leave(self) -> None:
        if self._active and self._observer is not None:
            self._active = False
            self._observer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._block_hooks:
            hook.remove()
        self._block_hooks = []

    @_guarded
    def _stop_observing(self) -> None:
        observer = self._observer
        assert observer is not None
        self._leave()
        if observer.failed is not None:
            raise RuntimeError(observer.failed)
        self._recomputes = self._recomputes or observer.recomputed
        peaks = observer.tally.peaks()
        for phase, (size, parts) in peaks.items():
            if size > self.peaks.get(phase, (-1, {}))[0]:
                self.peaks[phase] = (size, parts)
        self.event("step", step=self.step, peaks={phase: size for phase, (size, _) in peaks.items()}, parts=max(peaks.values())[1])
        for backend, site in observer.attention:
            self.event("attention", step=self.step, backend=backend, where=site)
        for finding in (*judging.kernels(observer), *judging.checkpoints(observer, self.model, self._asked)):
            self._found(finding)
        observer.recomputing = None  # its samples are no part of the run

    def _threshold(self, seeds: dict[int, owned.Own]) -> int:
        if self._least is None:
            least = max(SMALLEST, int(SHARE * sum(own.bytes for own in seeds.values())))
            if not self.step:
                return least  # the optimizer's state is still to come
            self._least = least
        return self._least

    # between steps

    @_guarded
    def _boundary(self) -> None:
        """Look at everything alive, where that is due."""
        observer, self._observer = self._observer, None
        try:
            wanted = not self._looked or self.policy.copies == "raise" or (observer is not None and self._pace.look(self.step))
            if not wanted:
                return
            began = time.monotonic()
            seeds = owned.by_storage(self.model, self.optimizer)
            peak = max((size for size, _ in self.peaks.values()), default=0)
            for finding in self._boundaries.look(seeds, observer, least=self._threshold(seeds), step=self.step, peak=peak):
                self._found(finding)
            self._looked = True
            self._pace.looked += time.monotonic() - began
        finally:
            if observer is not None:
                observer.end()

    def _found(self, finding: Finding) -> None:
        key = (finding.kind, finding.where, finding.name, finding.level)
        if key in self._known:
            return
        self._known.add(key)
        (self.findings if finding.level == "warning" else self.notes).append(finding)
        self.event("finding", finding.level, **{("cause" if k == "kind" else k): v for k, v in finding.to_json().items() if k != "level"})
        if finding.kind != "framework-upcast":  # judged where it happened
            self.policy.judge(finding)
