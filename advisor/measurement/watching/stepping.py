"""The hooks of a watched run: where a step begins and ends, when its operators are observed, what is looked at between two steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import torch

from advisor.measurement.watching import buckets, checkpointed, configured, described, emulated, gathering, judging, owned, replaying
from advisor.measurement.watching.boundary import Boundaries
from advisor.measurement.watching.finding import Finding
from advisor.measurement.watching.guarding import guarded
from advisor.measurement.watching.observer import Observer, in_backward
from advisor.measurement.watching.pacing import FIRST, Pace
from advisor.measurement.watching.policy import Policy
from advisor.measurement.watching.recomputing import Recomputing

SMALLEST = 4096  # bytes below which nothing is worth a finding
SEEN_WHOLE = 2  # steps whose optimizer is observed before that is spared: the first makes its state
RATED = (1, FIRST - 1)  # steps whose gradients are counted whatever their dtype: before the first, half of an adapter has none
SHARE = 0.001  # of the model's state, likewise


class Stepping:
    """Passes, observes and looks, step by step. What it finds goes to :meth:`found`, what it sees to :meth:`event`."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, policy: Policy, *, full: bool, least: int | None, asked: bool | None,
        verify: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.policy = model, policy
        self.optimizer: torch.optim.Optimizer | None = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.failed: str | None = None  # why the watcher itself gave up, where it did
        self.step = self.observed = 0
        self.tokens: tuple[int, int] | None = None  # [micro_batch, seq_len] of the last forward pass
        self.forwards = 0  # of the last step that has ended
        self.autocast: torch.dtype | None = None
        self.recomputes = False
        self.driven = False  # a framework says where a micro batch begins and the optimizer steps: a model's own forward may never be called
        self._least, self._asked, self._verifies = least, asked, verify
        self._block: torch.nn.Module | None = None  # the sampled one, where its checkpoint is to be verified
        self.not_compared: set[str] = set()  # reasons why a sampled block was not run once more
        self._hooks: list[Any] = []
        self._block_hooks: list[Any] = []
        self._observer: Observer | None = None
        self._resizes = contextlib.ExitStack()
        self._active = False  # the observer sees operators now
        self._resident = dict[str, dict[str, int]]()  # when the observed step began: part, dtype, bytes
        self._boundaries = Boundaries(model, self.optimizer, self)
        self._gradients = judging.Gradients()
        self._blocks, self._vocabulary = configured.blocks(model), configured.vocabulary(model)
        self._forward_number, self._looked = 0, False
        self._pace = Pace(full, policy.raises)
        self._step_began = 0.0

    def event(self, kind: str, level: str = "note", **values: Any) -> None:
        """Something was seen."""

    def found(self, finding: Finding) -> None:
        """Something was found."""

    @property
    def phase(self) -> str | None:
        """What runs now; ``None`` where that is not observed."""
        if self._observer is None:
            return None
        return "backward" if in_backward() else self._observer.phase

    def begin(self) -> None:
        """Put the hooks in."""
        self._pace = Pace(self._pace.full, self._pace.every)
        if not self.driven:
            self._hooks.append(self.model.register_forward_pre_hook(self._forward_begins, with_kwargs=True))
            self._hooks.append(self.model.register_forward_hook(self._forward_ends))
        if self.optimizer is not None:
            if not self.driven:
                self._hooks.append(self.optimizer.register_step_pre_hook(self._step_begins))
            self._hooks.append(self.optimizer.register_step_post_hook(self._step_ends))

    def finish(self) -> None:
        """Take the hooks out."""
        for hook in (*self._hooks, *self._block_hooks):
            hook.remove()
        if self._active:
            self._stop_observing()

    # what the hooks call, or a framework that has hooks of its own

    def batch_begins(self, inputs: Iterable[Any]) -> None:
        """The forward pass of a micro batch begins."""
        self._forward_begins(self.model, tuple(inputs), {})

    def loss_made(self) -> None:
        """It has ended, and the backward pass is about to begin."""
        self._forward_ends()

    def gradients_made(self) -> None:
        """The optimizer is about to read the gradients."""
        self._step_begins()

    @guarded
    def _forward_begins(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward():
            return
        self._forward_number += 1
        if self._forward_number == 1:
            self._boundary()
            inputs = [*args, *kwargs.values()]
            self.tokens = described.shape_of(inputs)
            self.autocast = described.autocast_of(inputs)
            self._step_began = time.monotonic()
            if self._pace.observe(self.step):
                self._observe(inputs)
        elif self._observer is not None:
            self._observer.phase = "forward"

    @guarded
    def _forward_ends(self, *_: Any) -> None:
        if self._observer is not None and not in_backward():
            self._observer.phase = "loss"

    @guarded
    def _step_begins(self, *_: Any) -> None:
        observer = self._observer
        if not self._active or observer is None:
            return
        observer.phase = "step"
        observer.tally.gradients(own for own, known in owned.by_storage(self.model, None).items() if known.part == "gradients")
        if observer.fp16 or self.step in RATED:
            lost = self._gradients.look(self.model, self.step, scaled=observer.fp16)
            self.event("gradients", step=self.step, layers=self._gradients.worst())
            if lost is not None:
                self.found(lost)
        if SEEN_WHOLE <= self.step < FIRST or (self._pace.full and self.step >= FIRST and not self._pace.look(self.step)):
            self._stop_observing()  # the optimizer's part is some operators for each parameter, and always the same

    @guarded
    def _step_ends(self, *_: Any) -> None:
        observed = self._observer is not None
        if self._active:
            self._stop_observing()
        if self._step_began:
            self._pace.over(time.monotonic() - self._step_began, observed=observed)
        self.step += 1
        self.forwards, self._forward_number = self._forward_number, 0

    # observing

    def _observe(self, inputs: list[Any]) -> None:
        seeds = owned.by_storage(self.model, self.optimizer)
        self._resident = owned.by_part(seeds.values())
        least = self._threshold(seeds)
        for bucket in buckets.of(buckets.around(self.model), [*seeds.values()]):
            seeds[buckets.KEY] = bucket
        for tensor in self._boundaries.others():
            if (other := owned.of(tensor, "reference", "another model")) is not None:
                seeds.setdefault(*other)
        for tensor in inputs:  # the batch lives as long as the step
            if isinstance(tensor, torch.Tensor) and (given := owned.of(tensor, "activations", "inputs")) is not None:
                seeds.setdefault(*given)
        if not self.observed and (slow := emulated.emulated(self.model, self.autocast, self.step)) is not None:
            self.found(slow)
        self._observer = Observer(seeds, least=least, vocab=self._vocabulary, step=self.step, on_widening=self.policy.judge)
        self._observer.divided = gathering.divided(self.model)
        self._observer.follow(p.grad for p in self.model.parameters() if p.grad is not None)
        if self._blocks and (self.observed < FIRST or self.recomputes):
            name, block = self._blocks[self.observed % len(self._blocks)]
            self._watch_block(self._observer, name, block)
        self.observed += 1
        self._active = True
        if self._observer.divided:
            self._resizes.enter_context(gathering.telling(self._observer.resized))
        self._observer.__enter__()  # type: ignore[no-untyped-call]  # torch ships no types here

    def _watch_block(self, observer: Observer, name: str, block: torch.nn.Module) -> None:
        recomputing = observer.recomputing = Recomputing(name, configured.where(block))
        self._block_hooks = [
            block.register_forward_pre_hook(lambda *_: recomputing.enter(in_backward())),
            block.register_forward_hook(lambda *_: recomputing.leave(), always_call=True),
        ]
        if self._verifies and not checkpointed.compiled(self.model):
            self._block = block  # a wrapper, the block itself or a part of it may be what is checkpointed
            self._block_hooks += [m.register_forward_pre_hook(lambda *_: None if in_backward() else recomputing.ask()) for m in block.modules()]

    def _verified(self, observer: Observer) -> replaying.Outcome | None:
        """The sampled block, run once more with and without its checkpoint; ``None``: none was, or it can not be."""
        ran, block, self._block = observer.recomputing, self._block, None
        if ran is None or block is None or not observer.saw_backward or (ran.call is None and ran.unfit is None):
            return None
        try:
            if ran.call is None or ran.communicates:
                raise checkpointed.Unfit(ran.unfit or "it talks to other ranks, which do not run it once more")
            room = max(size for size, _ in observer.tally.peaks().values()) - observer.tally.bytes
            found = replaying.replay(ran.call, self.model, block, name=ran.block, made=ran.made, room=room)
        except checkpointed.Unfit as reason:
            if str(reason) not in self.not_compared:
                self.not_compared.add(str(reason))
                self.event("checkpoint-not-compared", step=self.step, block=ran.block, why=str(reason))
            return None
        self.event(
            "checkpoint-compared", step=self.step, block=ran.block, gradients=found.gradients, differ=len(found.differs), exact=found.exact, bytes=found.bytes
        )
        return found

    def leave(self) -> None:
        """No longer see operators."""
        if self._active and self._observer is not None:
            self._active = False
            self._observer.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._resizes.close()
        for hook in self._block_hooks:
            hook.remove()
        self._block_hooks = []

    @guarded
    def _stop_observing(self) -> None:
        observer = self._observer
        assert observer is not None
        self.leave()
        if observer.failed is not None:
            raise RuntimeError(observer.failed)
        self.recomputes = self.recomputes or observer.recomputed
        peaks = observer.tally.peaks()
        for phase, (size, parts) in peaks.items():
            if size > self.peaks.get(phase, (-1, {}))[0]:
                self.peaks[phase] = (size, parts)
        sizes = {phase: size for phase, (size, _) in peaks.items()}
        self.event("step", step=self.step, peaks=sizes, parts=max(peaks.values(), key=lambda peak: peak[0])[1], resident=self._resident)
        for backend, site in observer.attention:
            self.event("attention", step=self.step, backend=backend, where=site)
        for finding in (*judging.kernels(observer), *judging.checkpoints(observer, self.model, self._asked, self._verified(observer))):
            self.found(finding)
        observer.recomputing = None  # its samples are no part of the run

    def _threshold(self, seeds: dict[int, owned.Own]) -> int:
        if self._least is None:
            least = max(SMALLEST, int(SHARE * sum(own.bytes for own in seeds.values())))
            if not self.step:
                return least  # the optimizer's state is still to come
            self._least = least
        return self._least

    # between steps

    @guarded
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
            for finding in self._boundaries.look(seeds, observer, least=self._threshold(seeds), step=self.step, peak=peak, soon=self.step < FIRST):
                self.found(finding)
            self._looked = True
            self._pace.looked += time.monotonic() - began
        finally:
            if observer is not None:
                observer.end()
