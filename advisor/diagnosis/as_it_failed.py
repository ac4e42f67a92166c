"""A default of the newest version, where no version was read and the run failed far below what the card holds: then an older default may be the run's.

Defaults change with versions (whole logits before a chunked loss, fp32 before the checkpoint's dtype). A job that by the newest ones takes a tenth
of its card, and yet ran out in a training step, was more likely run with those under which it comes near to the card. What a default becomes so is
an inference: it is shown as one, with both figures, and what is stated or read is never touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from advisor.evidence import Evidence, Fact
from advisor.job import Job, JobError
from advisor.rules import counters
from advisor.rules.estimating import ledger_of
from advisor.rules.situation import in_phase, uncertain
from advisor.run import Run, resolve
from advisor.units import show

# Judgements, not measured: an estimate of half of what failed is further off than nine in ten of the public measured runs (18 %), and what
# closes less than half of that gap, in logarithms, leaves the most of it to another reason.
FAR = math.log(2)
CLOSES = 0.5
ROUNDS = 2  # defaults that may differ at once


# Defaults that versions of the tables' frameworks changed for every model. Attention is none: a family that came with the fused kernel never ran without.
BY_VERSION = frozenset({"activations.loss", "activations.checkpointing", "activations.reentrant", "load.dtype", "precision.weights", "batch.micro_batch"})


def older_defaults(run: Run, job: Job, evidence: Evidence) -> tuple[Run, Job, Evidence]:
    """The run with the older default that explains most of the failure, where the newest leave most of it unexplained."""
    for _ in range(ROUNDS):
        fact = _nearer(run, job, evidence)
        if fact is None:
            break
        section, _, field = fact.field.partition(".")
        job, evidence = job.but(**{section: {field: fact.value}}), evidence.with_facts((fact,))
        run = resolve(job, evidence)
    return run, job, evidence


def _nearer(run: Run, job: Job, evidence: Evidence) -> Fact | None:
    failure = evidence.failure
    if failure is None or failure.kind != "gpu-memory" or not in_phase(evidence, "forward", "loss", "backward", None):
        return None
    needed, before = _needed(run, evidence), _peak(run)
    if needed is None or before is None or needed < before or (gap := _gap(needed, before)) < FAR:
        return None
    tried = [(_gap(needed, after), after, old, value) for old, value, after in _alternatives(run, job, evidence)]
    if not tried:
        return None
    left, after, old, value = min(tried, key=lambda t: t[0])
    if left > CLOSES * gap:
        return None
    why = (
        f"no version was read; with the newest default ({old.value}) the estimate is {show(before)} of the {show(needed)} that failed, with this {show(after)}"
    )
    return Fact(old.field, value, "inferred", where=failure.where, why=why)


def _alternatives(run: Run, job: Job, evidence: Evidence) -> Iterator[tuple[Fact, object, int]]:
    for path, fact in run.facts.items():
        if fact.kind != "default" or path not in BY_VERSION or not uncertain(run, path):
            continue
        section, _, field = path.partition(".")
        for value in fact.alternatives:
            try:
                peak = _peak(resolve(job.but(**{section: {field: value}}), evidence))
            except JobError:
                continue
            if peak is not None:
                yield fact, value, peak


def _needed(run: Run, evidence: Evidence) -> int | None:
    """What the failing moment needed: allocated and asked for, as the counters say; else the card. Bytes."""
    wanted = counters.of(evidence).wanted
    return wanted if wanted is not None else run.usable[0] if run.usable is not None else None


def _peak(run: Run) -> int | None:
    ledger = ledger_of(run)
    return None if ledger is None else ledger.peak().bytes or None


def _gap(needed: int, peak: int) -> float:
    """How far the estimate stays below what failed, in logarithms; above it, how far it overshoots counts as well."""
    return abs(math.log(needed / peak)) if needed > 0 else 0.0
