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
NORM = "fp64 copy of a gradient for the norm"
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
    yield from _norm(ctx, share, (ctx.master * limit if ctx.master != each else 0) + first + temporary)
    if first:
        yield Holding(
            "gradients", ONE_TENSOR, first, moment, "elements x bytes_each - temporaries of the update, which come after it",
            {"elements": limit, "bytes_each": each, "temporaries": temporary}, SOURCE, copy_of="gradient partition", need="needed",
        )  # fmt: skip


def _norm(ctx: Context, share: int, later: int) -> Iterator[Holding]:
    """Stages 1 and 2 take the norm of each gradient of the partition in fp64, before the copies of the step (``later``, bytes) are made."""
    if ctx.strategy not in ("zero1", "zero2"):
        return
    largest = min(share, max((i.elements for u in ctx.counts.units for i in u.items if i.fate in ("trained", "adapter")), default=0))
    freed = ctx.gradient * share if freed_before_update(ctx, share) else 0
    if (more := 8 * largest + freed - later) > 0:
        yield Holding(
            "gradients", NORM, more, ctx.trains & {at.STEP}, "largest_tensor x 8 - copies that come after it",
            {"largest_tensor": largest, "later": later - freed}, "deepspeed stage_1_and_2.py get_grad_norm_direct (0.12.6 to 0.19.8)", dtype="fp64",
        )  # fmt: skip


def freed_before_update(ctx: Context, share: int) -> bool:
    """Whether stages 1 and 2 have freed their gradient partition at the larger moment of the step: the update's, where its temporaries are the larger."""
    return ctx.strategy in ("zero1", "zero2") and ctx.master != ctx.gradient and optimizer.step_bytes(ctx) >= 2 * ctx.gradient * share


def without_stages(ctx: Context) -> bool:
    """Whether DeepSpeed's engine runs without ZeRO in 16 bits: its own optimizer wrapper and its own all-reduce, no DistributedDataParallel."""
    half = ctx.job.precision.compute in ("fp16", "bf16")
    return ctx.strategy in ("none", "ddp") and ctx.job.precision.mixed == "deepspeed" and half and ctx.masters


def whole(ctx: Context) -> Iterator[Holding]:
    """Stage 0: gradients are joined to be reduced after the backward pass; the step widens each, and joins what it widened for an optimizer of its own.

    bf16 goes the way of fp16 (runtime/engine.py ``_configure_fp16_optimizer``, 0.19.8); PyTorch's optimizers are wrapped without joining
    (fp16/unfused_optimizer.py; fused_optimizer.py is for DeepSpeed's and apex's).
    """
    n, each = ctx.counts.learned, ctx.gradient
    if ctx.strategy == "ddp":
        yield Holding(
            "communication", "gradients joined to be reduced", min(n, REDUCED) * each, ctx.trains & {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": min(n, REDUCED), "bytes_each": each}, "deepspeed runtime/engine.py buffered_allreduce_fallback, allreduce_no_retain", layout="bucket",
            copy_of="gradients", need="needed",
        )  # fmt: skip
    own = ctx.job.optimizer.implementation == "multi-tensor"
    for name in ("fp32 gradients of the tensors", "fp32 gradients joined in one tensor")[: 2 if own else 1]:
        yield Holding(
            "gradients", name, 4 * n, ctx.trains & {at.STEP}, "elements x 4", {"elements": n},
            "deepspeed runtime/fp16/fused_optimizer.py step: p.grad.to(fp32) of every tensor, then _flatten_dense_tensors", dtype="fp32", copy_of="gradients",
            need="needed",
        )  # fmt: skip
