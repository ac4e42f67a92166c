"""Gradients as they arrive: the head's first, then block by block, the embedding's last.

Weight gradients of the block that runs backward are counted with its activations (they are born between its operations).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.arithmetic import fsdp1, fsdp2, fsdp_whole, logits, torch_pipeline, zero, zero_step
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import FSDP, Context
from advisor.ledger import Holding

SOURCE = "torch autograd: one gradient a trained tensor, in its dtype, from its backward to zero_grad"

SAVED = "torch fsdp _runtime_utils.py _accumulate_sharded_grad: _saved_grad_shard stays on the card until the backward pass has ended, copied or not"
TO_HOST = "torch fsdp _runtime_utils.py _offload_grad, _fully_shard/_fsdp_collectives.py foreach_reduce: each shard is copied to where its parameter is"


def holdings(ctx: Context) -> Iterator[Holding]:
    """What backward leaves for the optimizer."""
    if not ctx.counts.learned:
        return
    if ctx.strategy in FSDP:
        units = fsdp_whole if fsdp_whole.one_unit(ctx) else fsdp1 if ctx.strategy == "fsdp1" else fsdp2
        for held in units.gradients(ctx):
            if not ctx.parameters_away or held.layout != "sharded":
                yield held
                continue
            if ctx.strategy == "fsdp1" and (until := held.moments - {at.STEP}):
                yield replace(held, moments=until, source=SAVED)
            yield replace(held, device="host", source=TO_HOST)
    elif ctx.strategy in ("zero1", "zero2", "zero3"):
        yield from zero.gradients(ctx)
    elif ctx.is_megatron:
        yield from _megatron(ctx)
    elif ctx.gradients_leave or ctx.method == "lomo":
        yield from _stepped_at_once(ctx)
        if ctx.gradients_away:
            yield replace(
                next(h for h in _whole(ctx) if h.name == "gradients"), device="host", source="torchao optim/cpu_offload.py: pinned copies of all gradients"
            )
    else:
        yield from _whole(ctx)
        if zero_step.without_stages(ctx):
            yield from zero_step.whole(ctx)
        elif ctx.strategy == "ddp":
            yield from _buckets(ctx)


def _megatron(ctx: Context) -> Iterator[Holding]:
    size = ctx.counts.learned * ctx.gradient
    yield Holding(
        "gradients", "gradient buffer", size, ctx.moments - {at.LOAD_MATERIALISE}, "trained_elements x bytes_each",
        {"trained_elements": ctx.counts.learned, "bytes_each": ctx.gradient},
        "Megatron-LM distributed/param_and_grad_buffer.py: contiguous main_grad, allocated once", dtype=ctx.job.precision.gradients,
    )  # fmt: skip


def _stepped_at_once(ctx: Context) -> Iterator[Holding]:
    """Each parameter is stepped and its gradient freed as soon as it exists: one tensor at a time."""
    c, each = ctx.counts, ctx.gradient
    outer = max((i.elements for i in c.outer.items if i.fate == "trained"), default=0)
    inner = max((i.elements for u in c.blocks for i in u.items if i.fate in ("trained", "adapter")), default=0)
    early, table, tied = _outer(ctx)
    name = "the gradient being copied away" if ctx.gradients_away else "the gradient being stepped"
    for largest, when in ((outer, {at.BACKWARD_ROOT}), (inner, {at.BACKWARD_LAST, at.BACKWARD_FIRST})):
        yield Holding(
            "gradients", name, each * largest, ctx.trains & when, "largest_tensor x bytes_each",
            {"largest_tensor": largest, "bytes_each": each}, "torch register_post_accumulate_grad_hook: stepped and freed when it exists",
        )  # fmt: skip
    yield from _of_head(ctx, early)
    if tied:
        yield _waiting(ctx, table)


def _whole(ctx: Context) -> Iterator[Holding]:
    c, base, adapter = ctx.counts, ctx.gradient, ctx.adapter
    dtype = ctx.job.precision.gradients
    every = c.trained * base + c.adapters * adapter
    values = {"trained_elements": c.trained, "bytes_each": base, "adapter_elements": c.adapters, "adapter_bytes_each": adapter}
    formula = "trained_elements x bytes_each + adapter_elements x adapter_bytes_each"
    early, table, tied = _outer(ctx)
    if ctx.gradients_kept:
        kept = ctx.trains - torch_pipeline.PASSES if ctx.torch_pipeline else ctx.trains  # there, chunk by chunk
        yield Holding("gradients", "gradients", every, kept, formula, values, SOURCE, dtype=dtype)
        inner = max((i.elements for u in c.blocks for i in u.items if i.fate in ("trained", "adapter")), default=0)
        yield from _of_head(ctx, early)
        if tied:
            yield _waiting(ctx, table)
        for size, when in ((inner, {at.BACKWARD_LAST, at.BACKWARD_FIRST}), (table, {at.BACKWARD_ROOT})):
            yield Holding(
                "gradients", "gradient being added to the accumulated one", base * size, ctx.trains & when, "elements x bytes_each",
                {"elements": size, "bytes_each": base}, "torch AccumulateGrad: the new gradient lives until it is added", dtype=dtype,
            )  # fmt: skip
        return
    if early:
        yield Holding(
            "gradients", "gradient of the head", early * base, ctx.trains & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "elements x bytes_each",
            {"elements": early, "bytes_each": base}, SOURCE, dtype=dtype,
        )  # fmt: skip
    per = [(u.trained * base + u.adapters * adapter, u.layers) for u in c.blocks]
    blocks = sum(size * layers for size, layers in per) - max((size for size, _ in per), default=0)
    yield Holding("gradients", "gradients of the blocks done", blocks, ctx.trains & {at.BACKWARD_FIRST}, formula, values, SOURCE, dtype=dtype)
    yield Holding("gradients", "gradients", every, ctx.trains & {at.BACKWARD_ROOT, at.STEP}, formula, values, SOURCE, dtype=dtype)
    if tied and table:
        yield Holding(
            "gradients", "the tied table's second gradient", table * base, ctx.trains & {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": table, "bytes_each": base}, "torch embedding_dense_backward makes a whole table before it is added to the head's gradient",
            dtype=dtype,
        )  # fmt: skip


def _outer(ctx: Context) -> tuple[int, int, bool]:
    """Trained elements whose gradient the head's backward makes, those of the embedding's table, and whether both are one tensor."""
    items = ctx.counts.outer.items
    head = sum(i.total for i in items if i.fate == "trained" and i.role == "head")
    table = sum(i.total for i in items if i.fate == "trained" and i.role == "embedding")
    tied = bool(table) and not head and ctx.has_head and ctx.arch.tied and ctx.arch.classes is None  # a classifier reads the table once
    return head or (table if tied else 0), table, tied


def _of_head(ctx: Context, elements: int) -> Iterator[Holding]:
    """What the head's new gradient adds to the loss's backward: it is made after the loss's wide copies have gone, beside the logits' gradient alone."""
    size = elements * ctx.gradient
    gone = logits.gone_before_head(ctx)
    yield Holding(
        "gradients", "gradient of the head beyond the loss's copies", max(0, size - gone), ctx.trains & {at.LOSS_BACKWARD},
        "max(0, elements x bytes_each - copies_gone)", {"elements": elements, "bytes_each": ctx.gradient, "copies_gone": gone},
        "torch autograd: addmm's backward runs when the loss's backward has returned the logits' gradient", dtype=ctx.job.precision.gradients,
    )  # fmt: skip


def _waiting(ctx: Context, table: int) -> Holding:
    """Of a tied table the head's gradient waits for the embedding's: the leaf is accumulated once, when both have come."""
    return Holding(
        "gradients", "the tied table's gradient of the head", table * ctx.gradient, ctx.trains & at.BACKWARD, "elements x bytes_each",
        {"elements": table, "bytes_each": ctx.gradient}, "torch/csrc/autograd/engine.cpp: a node runs when all that flows into it is in its input buffer",
        dtype=ctx.job.precision.gradients,
    )  # fmt: skip


def _buckets(ctx: Context) -> Iterator[Holding]:
    """DDP's buckets hold every gradient once more unless gradients are views of them."""
    if ctx.job.parallel.gradient_as_bucket_view:
        return
    c = ctx.counts
    size = c.trained * ctx.gradient + c.adapters * ctx.adapter
    yield Holding(
        "communication", "DDP buckets", size, ctx.trains, "trained_elements x bytes_each", {"trained_elements": c.learned, "bytes_each": ctx.gradient},
        "torch reducer.cpp: buckets are allocated once; gradient_as_bucket_view=False keeps gradients beside them", layout="bucket",
        copy_of="gradients", need="avoidable",
    )  # fmt: skip
