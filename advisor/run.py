"""Run: how a job really runs: every value resolved, a Fact for each, and the deviations from what is written.

:func:`resolve` is the one place where unknown fields are filled, for job files, forms and pasted text alike: from the framework's
default (of its version), else from a stated assumption. What neither settles stays ``None``, and :attr:`Run.missing` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor import cards
from advisor.architecture import Architecture, of_model
from advisor.deviation import Deviation
from advisor.evidence import Evidence, Fact
from advisor.job import Job, OtherGpu
from advisor.units import GIB

SAME_CARD = 0.02  # of the total: what ECC, driver and firmware take differs by less, two sizes of a card by more

INEFFECTIVE: Mapping[str, Mapping[str, Any]] = {
    # field of an "ineffective" deviation -> how the job looks when that setting does nothing
    "activations.checkpointing": {"activations": {"checkpointing": "none"}},
    "activations.attention": {"activations": {"attention": "eager"}},
    "activations.loss": {"activations": {"loss": "full-fp32"}},
    "activations.kernels": {"activations": {"kernels": ()}},
    "method.base": {"method": {"base": "none"}},
    "parallel.strategy": {"parallel": {"strategy": "ddp"}},
    "parallel.sync_each_microbatch": {"parallel": {"sync_each_microbatch": False}},
    "rollout.sleep": {"rollout": {"sleep": "none"}},
    "offload.parameters": {"offload": {"parameters": "none"}},
    "offload.optimizer": {"offload": {"optimizer": "none"}},
    "offload.activations": {"offload": {"activations": "none"}},
}


class Run(Struct, frozen=True, dict=True):
    """A resolved job. ``job`` has every value that could be settled; ``stated`` is what was written.

    Causes and techniques are functions from run to run: :meth:`but` changes the job, :meth:`deviating` adds a deviation; both
    keep the paths they changed in ``changed``.
    """

    job: Job
    stated: Job
    facts: Mapping[str, Fact]
    deviations: tuple[Deviation, ...] = ()
    changed: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()  # fields that decide the estimate and are not known
    seen: Evidence | None = None  # what was inferred from ranks, devices and keys is inferred anew from them

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    def but(self, **changes: Any) -> Run:
        """The run of the changed job: ``run.but(batch={"micro_batch": 1})``. What the change makes relevant is resolved anew."""
        job = self.job.but(**changes)
        paths = frozenset(p for s, c in changes.items() for p in ([f"{s}.{name}" for name in c] if isinstance(c, Mapping) else [s]))
        kept = {path: fact for path, fact in self.facts.items() if path not in paths and path.rpartition(".")[0] not in paths}
        for path in paths:
            if (value := job.get(path)) is not None:
                kept[path] = Fact(path, value, "stated", why="a change of the plan")
        changed = resolve(job, self.seen, facts=kept)
        return replace(changed, stated=self.stated, deviations=self.deviations, changed=self.changed | paths)

    def deviating(self, *deviations: Deviation) -> Run:
        """The run with further deviations."""
        paths = frozenset(d.field for d in deviations if d.field)
        return replace(self, deviations=self.deviations + deviations, changed=self.changed | paths)

    def without(self, keep: Any) -> Run:
        """The run with only the deviations for which ``keep(deviation)`` is true."""
        return replace(self, deviations=tuple(d for d in self.deviations if keep(d)))

    def ineffective(self, path: str, phase: str | None = None) -> bool:
        """Whether a setting does nothing (in a phase)."""
        return any(d.kind == "ineffective" and d.field == path and (not d.phases or phase in d.phases) for d in self.deviations)

    @cached_property
    def effective(self) -> Job:
        """The job as it really runs: ineffective settings (of all phases) and widened dtypes put in."""
        job = self.job
        for d in self.deviations:
            if d.kind == "ineffective" and d.field is not None and d.field in INEFFECTIVE and not d.phases:
                changes = {s: c for s, c in INEFFECTIVE[d.field].items() if getattr(job, s) is not None}
                job = job.but(**changes)
            elif d.kind == "widened" and d.field and d.part is None:
                section, _, name = d.field.partition(".")
                job = job.but(**{section: {name: d.to}})
        return job

    @cached_property
    def architecture(self) -> Architecture | None:
        """The model's shape; ``None`` where neither a config nor a known name gives it."""
        return of_model(self.job.model, transformers=(self.job.framework.versions or {}).get("transformers"))

    @cached_property
    def card(self) -> cards.Card | None:
        """The catalogue's card, where the job names one."""
        gpu = self.job.hardware.gpu
        return cards.find(gpu) if isinstance(gpu, str) else None

    @cached_property
    def usable(self) -> tuple[int, str] | None:
        """Bytes of one card that this job can use, and why: the cap and what others hold taken off. ``None``: card unknown."""
        hardware = self.job.hardware
        if isinstance(hardware.gpu, OtherGpu):
            total, why = round(hardware.gpu.memory_gib * GIB), f"the memory stated for {hardware.gpu.name}"
        elif self.card is not None:
            total, why = self.card.usable()
            if (printed := self._printed_total(total)) is not None:
                total, why = printed, f"the total that the error prints; {self.card.name}"
        else:
            return None
        if hardware.memory_fraction is not None:
            total, why = round(total * hardware.memory_fraction), f"{why}, times the cap of {hardware.memory_fraction:g}"
        others = round((hardware.other_processes_gib or 0) * GIB) + sum(d.bytes for d in self.deviations if d.kind == "foreign")
        return total - others, f"{why}, less what others hold" if others else why

    def _printed_total(self, total: int) -> int | None:
        """The card's total as its own error prints it, where it is the catalogue's but for a driver or a firmware; of another card, not."""
        failure = self.seen.failure if self.seen is not None and "hardware.gpu" not in self.changed else None
        printed = failure.capacity_bytes if failure is not None and failure.kind == "gpu-memory" else None
        return printed if printed is not None and abs(printed - total) <= SAME_CARD * total else None

    @property
    def world(self) -> int:
        """GPUs of the job: shard x replicate x tensor x pipeline."""
        p = self.job.parallel
        return (p.shard or 1) * (p.replicate or 1) * (p.tensor or 1) * (p.pipeline or 1)


def resolve(job: Job, evidence: Evidence | None = None, *, facts: Mapping[str, Fact] | None = None) -> Run:
    """Fill what is unknown and say from where.

    Order for each field: what is written (``stated``, or ``read`` where evidence has it), the named framework's default of its
    version, what the counters of an error imply, a stated assumption.
    """
    from advisor.resolving import fill  # the defaults' tables are loaded only when a job is resolved

    return fill(job, evidence or Evidence(), dict(facts or {}))
