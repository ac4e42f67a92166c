"""The forms of a job on so many cards of one node, each smaller than the one before, and what each needs.

Cards that differ in memory, rates and links alone hold the same bytes, so they share the forms, their estimates and the ranges of these: an H100 and an
H200, an RTX 4090 and an L40S. Where the estimate counts what a card has left (:func:`advisor.arithmetic.room.counted`) each card has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.arithmetic import CannotEstimate, estimate
from advisor.arithmetic.room import counted
from advisor.cards import Card
from advisor.evidence import Fact
from advisor.job import JobError
from advisor.ledger import Ledger
from advisor.planner.constraints import Constraints
from advisor.run import Run
from advisor.techniques import NotApplicable, all_techniques


class Form(Struct, frozen=True):
    """A run and its ledger, both of the largest of the cards that share it; ``changes``: what was applied, against the job as written."""

    changes: tuple[str, ...]
    run: Run
    ledger: Ledger | None  # None: a deciding fact is not known

    def on(self, card: Card) -> Run:
        """The run on another of the cards."""
        hardware, said = self.run.job.hardware, self.run.facts["hardware.gpu"]
        if hardware.gpu == card.id:
            return self.run
        facts = {**self.run.facts, "hardware.gpu": Fact(said.field, card.id, said.kind, said.where, said.why)}
        other = replace(self.run, job=replace(self.run.job, hardware=replace(hardware, gpu=card.id)), facts=facts)
        other.__dict__["architecture"] = self.run.architecture  # the same model
        return other


class Forms:
    """The forms on ``count`` of some cards that are alike; each is made and estimated when it is first asked for."""

    def __init__(self, run: Run, cards: Sequence[Card], count: int, allow: Constraints) -> None:
        largest = max(cards, key=lambda card: card.usable()[0])
        self._made: list[Form] = []
        self._more = _forms(run, largest, count, allow)

    def __iter__(self) -> Iterator[Form]:
        place = 0
        while place < len(self._made) or self._next():
            yield self._made[place]
            place += 1

    def _next(self) -> bool:
        form = next(self._more, None)
        if form is not None:
            self._made.append(form)
        return form is not None


def alike(run: Run, card: Card) -> tuple[Any, ...]:
    """What a run reads of a card beside its memory, rates and links: equal for cards that share their forms."""
    return (card.vendor, card.capability, tuple(sorted(card.supports.items())), card.id if counted(run.job) else "")


def samples(run: Run) -> int:
    """Samples of a step over all ranks."""
    b, p = run.job.batch, run.job.parallel
    return (b.micro_batch or 1) * (b.gradient_accumulation or 1) * max(1, (p.shard or 1) * (p.replicate or 1) // (p.context or 1))


def _forms(run: Run, card: Card, count: int, allow: Constraints) -> Iterator[Form]:
    """The job on so many cards: whole, divided, checkpointed, with a smaller micro batch."""
    base = _on(run, card, count)
    if base is None:
        return
    changes: tuple[str, ...] = ()
    yield _estimated(changes, base)
    wanted = [*(("fsdp", "zero-3") if count > 1 else ()), "gradient-checkpointing", *["smaller-micro-batch"] * 6]
    for name in wanted:
        if name == "zero-3" and "fsdp" in changes:
            continue
        if not allow.permits(all_techniques()[name]) or (name not in changes and not allow.within(len(changes) + 1)):
            continue
        try:
            after = all_techniques()[name].apply(base)
        except JobError:
            continue
        if not isinstance(after, NotApplicable):
            base, changes = after, (changes if name in changes else (*changes, name))
            yield _estimated(changes, base)


def _estimated(changes: tuple[str, ...], run: Run) -> Form:
    try:
        return Form(changes, run, estimate(run))
    except CannotEstimate:
        return Form(changes, run, None)


def _on(run: Run, card: Card, count: int) -> Run | None:
    """The job on one node of so many cards, its samples a step kept as nearly as whole numbers allow."""
    b, p = run.job.batch, run.job.parallel
    micro = b.micro_batch or 1
    whole = samples(run)
    micro = min(micro, max(1, whole // count))
    strategy = p.strategy if p.strategy in ("zero1", "zero2", "zero3", "fsdp1", "fsdp2") else "ddp"
    group = {"shard": 1, "replicate": count} if strategy == "ddp" else {"shard": count, "replicate": 1}
    parallel = {"strategy": "none" if count == 1 else strategy, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, **group}
    try:
        return run.but(
            hardware={"gpu": card.id, "gpus_per_node": count, "nodes": 1, "cards": None},
            parallel=parallel,
            batch={"micro_batch": micro, "gradient_accumulation": max(1, whole // (micro * count))},
        )
    except JobError:
        return None
