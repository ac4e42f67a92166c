"""The reverse: a run that fits with room spends the room on speed."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.technique import NotApplicable, technique


@technique("less-checkpointing", tier="spare")
def less_checkpointing(run: Run) -> Run | NotApplicable:
    """Recompute nothing that would fit."""
    if run.job.activations.checkpointing in (None, "none"):
        return NotApplicable("nothing is recomputed")
    if run.job.framework.name == "litgpt":
        return NotApplicable("litgpt has no setting for it: it checkpoints where it divides the model")
    return run.but(activations={"checkpointing": "none", "selective": None})


@technique("less-offload", tier="spare")
def less_offload(run: Run) -> Run | NotApplicable:
    """Keep on the card what would fit there."""
    offload = run.job.offload
    changes: dict[str, Any] = {n: "none" for n in ("activations", "parameters", "gradients", "optimizer") if getattr(offload, n) not in (None, "none")}
    if not changes:
        return NotApplicable("nothing is offloaded")
    optimizer = {"optimizer": {"name": "adamw"}} if run.job.optimizer.name == "cpu-adam" and "optimizer" in changes else {}
    return run.but(offload=changes, **optimizer)


@technique("larger-micro-batch", tier="spare")
def larger_micro_batch(run: Run) -> Run | NotApplicable:
    """More sequences a pass, fewer passes a step: the effective batch stays."""
    b, p = run.job.batch, run.job.parallel
    if b.micro_batch is None:
        return NotApplicable("the micro batch is not known")
    passes = (p.microbatches or 1) if (p.pipeline or 1) > 1 else (b.gradient_accumulation or 1)
    if passes == 1:
        return NotApplicable("the step is one pass already: a larger micro batch would be a larger effective batch")
    factor = next(f for f in range(2, passes + 1) if passes % f == 0)
    if (p.pipeline or 1) > 1:
        return run.but(batch={"micro_batch": b.micro_batch * factor}, parallel={"microbatches": passes // factor})
    return run.but(batch={"micro_batch": b.micro_batch * factor, "gradient_accumulation": passes // factor})


@technique("leave-headroom", tier="spare", estimated=False)
def leave_headroom(run: Run) -> Run | NotApplicable:
    """Stay a few per cent below the card's edge, where the allocator frees and asks again and the driver spills."""
    return run
