"""Fill what a job leaves open, each value with the Fact that says from where.

Order for each field: what is written or was read, the named framework's default of its version, what other values imply, a stated
assumption with its reason. What decides the estimate and is still open is named in ``Run.missing``.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture import ConfigError, of_model
from advisor.evidence import Evidence, Fact
from advisor.job import Job
from advisor.resolving import activations, batch, method, modelling, objective, optimizer, parallel, precision
from advisor.resolving.draft import Draft
from advisor.run import Run

__all__ = ["fill"]

# Later steps look at what earlier ones settled: the method decides the precision of adapters, the strategy who makes the compute copy.
STEPS = (method.settle, parallel.settle, objective.settle, modelling.settle, precision.settle, optimizer.settle, batch.settle, activations.settle)


def fill(job: Job, evidence: Evidence, facts: dict[str, Fact]) -> Run:
    """The run of a job.

    ``facts`` are those already known for the job's values (of an earlier resolving, or of a reader). Values that an earlier resolving
    derived are derived anew, because what they followed from may have changed; what is written or read is never changed.
    """
    draft = Draft(job, evidence, facts)
    for step in STEPS:
        step(draft)
    resolved = draft.job()
    missing, why = _missing(resolved)
    facts = {**draft.facts, "model.config": Fact("model.config", None, "assumed", why=why)} if why else draft.facts
    # Read facts are in ``facts`` by now; ranks, devices and keys are kept, or a change would be resolved without them (eight GPUs for the four that ran).
    seen = replace(evidence, facts=()) if evidence.failures or evidence.devices or evidence.seen_keys else None
    return Run(job=resolved, stated=draft.stated, facts=facts, missing=missing, seen=seen)


def _missing(job: Job) -> tuple[tuple[str, ...], str | None]:
    """The fields without which no estimate is possible, and what is wrong with a model config that cannot be read."""
    missing, why = [], None
    if job.model.name is None and job.model.config is None:
        missing.append("model.name")
    else:
        try:
            known = of_model(job.model) is not None
        except ConfigError as error:
            known, why = False, f"the model config cannot be read: {error}"
        if not known:
            missing.append("model.config")
    missing += [path for path in ("batch.micro_batch", "batch.seq_len") if job.get(path) is None]
    if "batch.micro_batch" in missing and job.batch.token_budget is not None:
        missing.remove("batch.micro_batch")
    return tuple(missing), why
