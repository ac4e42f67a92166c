"""DeepSpeed's step: the gradients of a partition are joined in one tensor, widened to the masters' dtype, and only then is anything freed."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic import optimizer
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import SUB_GROUP
from advisor.ledger import Holding

REDUCED = 500_000_000  # runtime/engine.py allreduce_bucket numel_per_bucket: elements joined for one all-reduce without ZeRO
ONE_TENSOR = "gradients joined in one tensor"
SOURCE = "deepspeed stage_1_and_2.py step, stage3.py _prepare_fp32_grad_for_sub_group: flatten(averaged_gradients).to(the masters' dtype)"


def joined(ctx: Context, share: int) -> Iterator[Holding]:
    """The copies that a step makes of its gradients, of ``share`` elements on this rank.

    ``flatten`` joins the tensors of a partition in a new one, ``to`` widens it while the joined one lives; the update's own temporaries come
    after that one is gone, so of the two only the larger counts.
    """
    each, moment = ctx.gradient, ctx.trains & {at.STEP}
    limit = min(share, SUB_GROUP) if ctx.strategy == "zero3" else share
    if ctx.master != each:
        yield Holding(
            "gradients", "fp32 gradients for the step", ctx.master * limit, moment, "elements x bytes_each", {"elements": limit, "bytes_each": ctx.master},
            f"{SOURCE}; stage 3 does so a sub-group at a time", dtype="fp32", copy_of="gradient partition", need="needed",
        )  # fmt: skip
    temporary = optimizer.step_bytes(ctx) if ctx.master != each else 0
    first = max(0, each * limit - temporary)
    if first:
        yield Holding(
            "gradients", ONE_TENSOR, first, moment, "elements x bytes_each - temporaries of the update, which come after it",
            {"elements": limit, "bytes_each": each, "temporaries": temporary}, SOURCE, copy_of="gradient partition", need="needed",
        )  # fmt: skip


def freed_before_update(ctx: Context, share: int) -> bool:
    """Whether stages 1 and 2 have freed their gradient partition at the larger moment of the step: the update's, where its temporaries are the larger."""
    return ctx.strategy == "zero2" and ctx.master != ctx.gradient and optimizer.step_bytes(ctx) >= 2 * ctx.gradient * share


def without_stages(ctx: Context) -> bool:
    """Whether DeepSpeed's engine runs without ZeRO in fp16: its own optimizer wrapper and its own all-reduce, no DistributedDataParallel."""
    return ctx.strategy in ("none", "ddp") and ctx.job.precision.mixed == "deepspeed" and ctx.job.precision.compute == "fp16" and ctx.masters


def whole(ctx: Context) -> Iterator[Holding]:
    """Stage 0: gradients are joined to be reduced after the backward pass; the step widens each, then joins what it widened."""
    n, each = ctx.counts.learned, ctx.gradient
    if ctx.strategy == "ddp":
        yield Holding(
            "communication", "gradients joined to be reduced", min(n, REDUCED) * each, ctx.trains & {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": min(n, REDUCED), "bytes_each": each}, "deepspeed runtime/engine.py buffered_allreduce_fallback, allreduce_no_retain", layout="bucket",
            copy_of="gradients", need="needed",
        )  # fmt: skip
    for name in ("fp32 gradients of the tensors", "fp32 gradients joined in one tensor"):
        yield Holding(
            "gradients", name, 4 * n, ctx.trains & {at.STEP}, "elements x 4", {"elements": n},
            "deepspeed runtime/fp16/fused_optimizer.py step: p.grad.to(fp32) of every tensor, then _flatten_dense_tensors", dtype="fp32", copy_of="gradients",
            need="needed",
        )  # fmt: skip
