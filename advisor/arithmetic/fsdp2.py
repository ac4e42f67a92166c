"""FSDP2 (fully_shard): parameters gathered group by group, reduced in the reduction's dtype.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py; the root's reduction and the optimizer's step agree
within 1 kB with real sharding code under fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.fsdp_units import gathered, largest_block, stays_whole, unsharded, unsynced
from advisor.arithmetic.parameters import Unit
from advisor.arithmetic.sharding import split
from advisor.arithmetic.torch_pipeline import PASSES
from advisor.ledger import Holding

FSDP2 = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
LEFT = "torch/distributed/pipelining/stage.py backward_maybe_with_nosync: set_reshard_after_backward(False) until perform_reduce_grad"


def _own_units(ctx: Context) -> bool:
    """Embedding and head are units of their own, so that nothing but the last norm is in the root."""
    wrap = ctx.job.parallel.wrap
    return wrap is not None and wrap.embeddings == "own unit"


def communication(ctx: Context) -> Iterator[Holding]:
    """Gathered parameters."""
    c, each = ctx.counts, unsharded(ctx)
    block = gathered(ctx, largest_block(ctx))
    root = gathered(ctx, c.outer)
    head = sum(i.total for i in c.outer.items if i.role in ("head", "norm", "other")) * each
    moments = ctx.trains - {at.STEP}
    source = "trained weights" if c.trained else "frozen weights"
    apart = _own_units(ctx) and not ctx.arch.tied
    where = moments & {at.LOSS_FORWARD, at.LOSS_BACKWARD} if apart else moments - {at.BACKWARD_ROOT}  # freed before its gradients are reduced
    yield Holding(
        "communication", "gathered head" if apart else "gathered root unit (embedding, head, last norm)", head if apart else root, where,
        "root_elements x bytes_each", {"root_elements": c.outer.elements, "bytes_each": each},
        f"{FSDP2}: the root stays whole from forward to its reduction", layout="gathered", copy_of=source, need="needed",
    )  # fmt: skip
    if apart:
        yield Holding(
            "communication", "gathered embedding", root - head, moments & {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": c.outer.elements - head // each, "bytes_each": each}, FSDP2, layout="gathered", copy_of=source, need="needed",
        )  # fmt: skip
    values = {"block_elements": largest_block(ctx).elements, "bytes_each": each}
    # a unit gathers the block before it when its output's gradient comes: the root's outputs include the loss, the head's are the logits alone
    # and so are a pipeline stage's, whose loss is the schedule's
    without = {at.BACKWARD_ROOT, at.LOSS_FORWARD} | ({at.LOSS_BACKWARD} if _own_units(ctx) or ctx.torch_pipeline else set())
    every = sum(u.layers * gathered(ctx, u) for u in c.blocks)
    if ctx.torch_pipeline and unsynced(ctx) and not stays_whole(ctx):
        for size, when in ((every - block, {at.BACKWARD_FIRST}), (every, {at.BACKWARD_ROOT})):
            yield Holding(
                "communication", "blocks that a backward pass leaves gathered", size, moments & when, "elements x bytes_each",
                {"elements": c.base, "bytes_each": each}, LEFT, layout="gathered", copy_of=source, need="replaceable",
            )  # fmt: skip
    if stays_whole(ctx):
        until = set() if ctx.torch_pipeline and unsynced(ctx) else {at.BACKWARD_ROOT}
        yield Holding(
            "communication", "gathered blocks (not freed after forward)", every, moments - until, "elements x bytes_each",
            {"elements": c.base, "bytes_each": each}, f"{FSDP2}: reshard_after_forward=False", layout="gathered", copy_of=source, need="replaceable",
        )  # fmt: skip
        return
    yield Holding(
        "communication", "gathered block", block, moments - without, "block_elements x bytes_each", values, f"{FSDP2} unshard",
        layout="gathered", copy_of=source, need="needed",
    )  # fmt: skip
    # of the first two blocks the second needs more, which runs with the first gathered ahead: the moment stands for both
    ahead = {at.FORWARD, at.LOSS_FORWARD, at.BACKWARD_LAST} | (set() if ctx.torch_pipeline or ctx.layers < 2 else {at.BACKWARD_FIRST})
    yield Holding(
        "communication", "next block's all-gather buffer", block, moments & ahead, "block_elements x bytes_each",
        values,
        f"{FSDP2}: the buffer of one gather lives until the next one's copy-out", layout="gathered", copy_of=source, need="needed",
    )  # fmt: skip


def gradients(ctx: Context) -> Iterator[Holding]:
    """Unsharded gradients on their way, and the shards they end in; the running block's are born between its operations, with its activations."""
    c, n, each = ctx.counts, ctx.shard, unsharded(ctx)

    def own(unit: Unit) -> int:
        return split(unit.trained, n) * ctx.gradient + split(unit.adapters, n) * ctx.adapter

    moments = ctx.trains
    every = sum(u.layers * own(u) for u in c.units)
    values = {"elements": c.learned, "bytes_each": ctx.gradient, "ranks": n}
    if unsynced(ctx):
        wide = max(ctx.reduce, each)
        kept = moments - {at.STEP} - (PASSES if ctx.torch_pipeline else set())  # there, chunk by chunk
        yield Holding(
            "gradients", "whole gradients kept over micro batches", c.learned * wide, kept, "elements x bytes_each",
            {"elements": c.learned, "bytes_each": wide}, f"{FSDP2} to_accumulated_grad_if_needed: unsharded, in the reduction's dtype", need="avoidable",
        )  # fmt: skip
        yield Holding("gradients", "gradient shards", every, moments & {at.STEP}, "elements x bytes_each / ranks", values, FSDP2, layout="sharded")
    elif ctx.accumulation > 1:
        yield Holding("gradients", "gradient shards", every, moments, "elements x bytes_each / ranks", values, FSDP2, layout="sharded")
    else:
        yield Holding("gradients", "gradient shards", every, moments & {at.STEP}, "elements x bytes_each / ranks", values, FSDP2, layout="sharded")
        yield Holding(
            "gradients", "gradient shards of the blocks", every - own(c.outer), moments & {at.BACKWARD_FIRST, at.BACKWARD_ROOT},
            "elements x bytes_each / ranks", values, FSDP2, layout="sharded",
        )  # fmt: skip
    block = max(c.blocks, key=lambda u: u.trained + u.adapters, default=c.outer)
    if ctx.job.activations.compile:  # torch aot_autograd: the gradients are outputs of the block's backward graph, made in the compiler's order
        size = block.trained * each + block.adapters * (each if ctx.job.precision.mixed == "fsdp" else ctx.adapter)
        yield Holding(
            "gradients", "unsharded gradient of a block", size, moments & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "block_elements x bytes_each",
            {"block_elements": block.trained + block.adapters, "bytes_each": each}, FSDP2, layout="gathered",
        )  # fmt: skip
    wide = (block.trained + block.adapters) * ctx.reduce
    if ctx.layers > 1 and not unsynced(ctx):
        yield Holding(
            "communication", "reduce-scatter input of the block before", wide, moments & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "block_elements x reduce_bytes",
            {"block_elements": block.trained + block.adapters, "reduce_bytes": ctx.reduce},
            "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce: chunked copy in the reduction's dtype",
        )  # fmt: skip
    root = c.outer
    head = sum(i.total for i in root.items if i.role == "head" and i.fate == "trained")
    tied = sum(i.total for i in root.items if i.role == "embedding" and i.fate == "trained") if ctx.arch.tied and ctx.has_head else 0
    apart = _own_units(ctx) and not ctx.arch.tied
    waiting = head or tied
    if waiting:
        yield Holding(
            "gradients", "gradient of the head", waiting * each, moments & (set() if apart else {at.BACKWARD_LAST, at.BACKWARD_FIRST}),
            "head_elements x bytes_each", {"head_elements": waiting, "bytes_each": each},
            f"{FSDP2} post_backward: a unit reduces when all its gradients are there",
        )  # fmt: skip
    last = root.trained - (head if apart else 0)
    if last:
        own_too = 0 if ctx.torch_pipeline and unsynced(ctx) else each  # there, the root's are among the whole gradients kept
        yield Holding(
            "gradients", "the root's gradients and their reduction's input", last * (own_too + ctx.reduce), moments & {at.BACKWARD_ROOT},
            "root_elements x (bytes_each + reduce_bytes)", {"root_elements": last, "bytes_each": own_too, "reduce_bytes": ctx.reduce},
            "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce",
        )  # fmt: skip
