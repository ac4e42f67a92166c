"""What the probe runs and what it refuses: better the estimate with a reason than a probe of another job."""

from __future__ import annotations

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import zero_scope
from advisor.simulation.frameworks import ON_ACCELERATE
from advisor.simulation.ranks import hosting, pipelining, ring, tensor_parallel
from advisor.simulation.request import CannotProbe

RUNS = frozenset({"none", "ddp", "fsdp1", "fsdp2"})
LOG_PROBABILITIES = frozenset({"dpo", "grpo"})
EIGHT_BIT = frozenset({"none", "ddp", "fsdp2"})  # strategies that leave a layer its weight as it is while it runs
CAUSAL = frozenset({None, "pretrain", "sft"})


def check(run: Run) -> None:
    """Refuse what has no stand-in.

    Raises:
        CannotProbe: naming the field.
    """
    why = _why_not(run, run.effective)
    if why is not None:
        raise CannotProbe(f"the probe does not run {why} yet: the estimate stands in")


def _why_not(run: Run, job: Job) -> str | None:
    if why := _several(run, job):
        return why
    if why := _objective(run, job):
        return why
    if job.model.vision is not None and (job.objective not in CAUSAL or run.world > 1):
        return "images with other objectives than the model's own loss" if run.world == 1 else "images on several ranks"
    if why := _padding_free(job):
        return why
    if job.activations.compile and job.model.source != "torchtitan":
        return "what torch.compile saves for the backward pass"
    if why := _eight_bit(run, job):
        return why
    if job.precision.master == "fp32" and not zero_scope.wanted(job):
        return "a separate fp32 master copy"
    if why := _offload(job):
        return why
    if job.rollout is not None and job.rollout.placement != "separate":
        return "a rollout engine on the same card"
    if any(d.kind in ("extra-holding", "retained") for d in run.deviations):
        return "copies or steps that a run holds by mistake"
    return None


def _eight_bit(run: Run, job: Job) -> str | None:
    """Of products in 8 bits and fewer, torchao's with dynamic scales of a tensor or of its rows."""
    compute, recipe = job.precision.compute, job.precision.fp8_recipe
    if compute not in ("fp8", "nvfp4", "mxfp8"):
        return None
    if compute != "fp8" or recipe not in (None, "tensorwise", "rowwise"):
        return f"{compute} products with {recipe} scales" if recipe else f"{compute} products"
    if job.framework.name not in (None, "custom", "torchtitan"):
        return f"fp8 products as {job.framework.name} makes them (TransformerEngine's modules need a GPU)"
    if run.world > 1 and (job.parallel.strategy or "none") not in EIGHT_BIT:
        return f"fp8 products under {job.parallel.strategy}"
    if tensor_parallel.size(job) > 1:
        return "fp8 products of layers that are divided (tensor parallelism)"
    return None if job.method.kind in (None, "full") else f"fp8 products beside {job.method.kind}'s own"


def _padding_free(job: Job) -> str | None:
    """Rows without padding need a kernel that is told where sequences end; others get a mask of all tokens by all tokens."""
    if job.activations.sequence_packing != "padding-free":
        return None
    if job.objective not in CAUSAL or job.model.vision is not None or job.model.source == "torchtitan":
        return "padding-free batches under other losses than a language model's own"
    return None if job.activations.attention in ("flash-2", "flash-3") else "padding-free batches without flash attention"


def _several(run: Run, job: Job) -> str | None:
    parallel = job.parallel
    strategy = parallel.strategy or "none"
    if zero_scope.wanted(job):
        return zero_scope.why_not(job)
    if run.world > 1 and strategy not in RUNS:
        return f"several ranks under {strategy} ({run.world} cards)"
    if (parallel.tensor or 1) > 1 and (strategy == "fsdp1" or (strategy == "ddp" and (parallel.replicate or 1) > 1)):
        return f"{strategy} over layers that are divided (tensor parallelism)"
    if (parallel.expert or 1) > 1:
        return "expert parallelism"
    return ring.why_not(job) or pipelining.why_not(job)


def _offload(job: Job) -> str | None:
    offload = job.offload
    away = [name for name in ("parameters", "optimizer", "gradients") if getattr(offload, name) not in (None, "none")]
    if hosting.wanted(job):
        if tensor_parallel.size(job) > 1:
            return "divided layers (tensor parallelism) with their shards on the host"
        if job.parallel.strategy == "fsdp2" and job.method.base not in (None, "none"):
            return "a quantised base whose shards FSDP2 keeps on the host"
        synced = job.framework.name not in ON_ACCELERATE and job.parallel.sync_each_microbatch is not False
        if job.parallel.strategy == "fsdp1" and (job.batch.gradient_accumulation or 1) > 1 and synced:
            return "gradients that FSDP1 puts on the host after every micro batch (it keeps the last one's alone: accumulate within no_sync)"
        away = []
    if away or offload.tiled_mlp:
        return f"offloading (offload.{away[0] if away else 'tiled_mlp'}) but FSDP's own"
    if offload.activations == "cpu" and (job.framework.name not in (None, "custom") or offload.activation_modules):
        return f"{job.framework.name or 'this framework'}'s own offloading of activations"
    return None


def _objective(run: Run, job: Job) -> str | None:
    if job.objective in CAUSAL:
        return None
    if job.objective not in LOG_PROBABILITIES:
        return f"the {job.objective} objective's losses"
    if job.framework.name not in (None, "trl", "custom"):
        return f"{job.framework.name}'s own {job.objective} step"
    tiled = job.activations.loss == "chunked" and job.framework.name == "trl"
    if not tiled and job.activations.loss not in ("full-fp32", "full", None):
        return f"a {job.activations.loss} loss under {job.objective}"
    if run.world > 1 and job.reference == "copy":
        return "a divided copy of the reference"
    if job.reference not in (None, "none", "precomputed", "adapter-off", "copy", "separate"):
        return f"a reference that is {job.reference}"
    return None
