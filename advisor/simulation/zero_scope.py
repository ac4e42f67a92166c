"""Which of DeepSpeed's jobs the probe runs; no torch is needed to tell."""

from __future__ import annotations

from advisor.arithmetic import CannotEstimate, context, zero
from advisor.job import Job
from advisor.run import Run

STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
DIVIDES = frozenset({"zero1", "zero2", "zero3"})


def wanted(job: Job) -> bool:
    """Whether DeepSpeed's engine runs the job."""
    strategy = job.parallel.strategy or "none"
    return strategy in DIVIDES or (strategy in STAGES and job.precision.mixed == "deepspeed")


def has_sixteen_bits(job: Job) -> bool:
    """Whether the engine trains in bf16 or fp16 beside fp32 masters."""
    return job.precision.compute in ("bf16", "fp16") and (job.precision.mixed == "deepspeed" or job.precision.weights == job.precision.compute)


def with_kernel(job: Job) -> Job:
    """The job with PyTorch's fused optimizer for DeepSpeed's (ops/adam/fused_adam.py, multi_tensor_apply): both make no tensors of their own."""
    return job.but(optimizer={"implementation": "fused"}) if wanted(job) and job.optimizer.implementation == "multi-tensor" else job


def sizes(run: Run) -> dict[str, int]:
    """``parallel.*_elements`` as the estimate takes them: written, what the framework's configuration makes of "auto", or DeepSpeed's own defaults."""
    try:
        ctx = context.read(run)
    except CannotEstimate:
        return {}
    hidden = ctx.arch.hidden
    found = {"bucket_elements": zero.setting(ctx, "bucket_elements", zero.BUCKET, hidden * hidden)}
    if ctx.strategy == "zero3":
        found["prefetch_elements"] = zero.setting(ctx, "prefetch_elements", zero.PREFETCH, zero.AUTO_PREFETCH * hidden * hidden)
        found["persistence_elements"] = zero.setting(ctx, "persistence_elements", zero.PERSISTENCE, 10 * hidden)
        found["max_live_elements"] = zero.setting(ctx, "max_live_elements", zero.MAX_LIVE, zero.MAX_LIVE)
    return found


def why_not(job: Job) -> str | None:
    """What of a DeepSpeed job has no stand-in."""
    parallel = job.parallel
    away = [name for name in ("parameters", "optimizer", "gradients") if getattr(job.offload, name) not in (None, "none")]
    if away:
        return f"DeepSpeed's offloading (offload.{away[0]}: its host tensors would be real ones of the job's size, and its CPU Adam is a compiled operator)"
    if max(parallel.replicate or 1, 1) > 1 and parallel.strategy in DIVIDES:
        return "ZeRO within groups of replicas (hpZ, MiCS)"
    for name in ("tensor", "context", "pipeline", "expert"):
        if (getattr(parallel, name) or 1) > 1:
            return f"DeepSpeed with parallel.{name} above 1"
    if job.precision.mixed not in ("deepspeed", "none", None):
        return f"mixed precision by {job.precision.mixed} under DeepSpeed"
    if has_sixteen_bits(job) and job.precision.master != "fp32":
        return "16-bit masters under DeepSpeed"
    if job.precision.reduce not in (None, job.precision.compute):
        return f"a reduction in {job.precision.reduce} of {job.precision.compute} gradients under DeepSpeed"
    if job.method.base not in (None, "none") and parallel.strategy == "zero3":
        return "a quantised base that ZeRO-3 divides"
    if job.optimizer.in_backward:
        return "an optimizer in the backward pass under DeepSpeed"
    if job.framework.name == "colossalchat":
        return "ColossalAI's own ZeRO"
    if job.reference in ("copy", "separate"):
        return "a reference that DeepSpeed prepares too"
    return None
