"""Gradients as they arrive: the head's first, then block by block, the embedding's last."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import gradient_ranks, split
from advisor.ledger import Holding

SOURCE = "torch autograd: one gradient a trained tensor, in its dtype, from its backward to zero_grad"


def holdings(ctx: Context) -> Iterator[Holding]:
    """What backward leaves for the optimizer."""
    c = ctx.counts
    if not c.learned or ctx.job.offload.gradients in ("cpu", "nvme"):
        return
    ranks = gradient_ranks(ctx)
    base, adapter = ctx.gradient, ctx.adapter

    def size(trained: int, adapters: int) -> int:
        return base * split(trained, ranks) + adapter * split(adapters, ranks)

    every = sum(u.layers * size(u.trained, u.adapters) for u in c.units)
    values = {"trained_elements": c.trained, "bytes_each": base, "adapter_elements": c.adapters, "adapter_bytes_each": adapter, "ranks": ranks}
    formula = "(trained_elements x bytes_each + adapter_elements x adapter_bytes_each) / ranks"
    if ctx.is_megatron or ctx.gradients_kept:
        yield Holding("gradients", "gradients", every, ctx.trains, formula, values, SOURCE, dtype=ctx.job.precision.gradients)
        return
    if ctx.job.optimizer.in_backward or ctx.method == "lomo":
        yield Holding(
            "gradients", "the gradient being stepped", base * c.largest, ctx.moments & at.BACKWARD, "largest_tensor x bytes_each",
            {"largest_tensor": c.largest, "bytes_each": base}, "each parameter is stepped and its gradient freed as soon as it exists",
        )  # fmt: skip
        return
    head = sum(i.total for i in c.outer.items if i.fate == "trained" and i.role == "head")
    tied = not head and ctx.has_head and ctx.arch.tied
    table = sum(i.total for i in c.outer.items if i.fate == "trained" and i.role == "embedding")
    early = head or (table if tied else 0)
    blocks = sum(u.layers * size(u.trained, u.adapters) for u in c.blocks)
    one = max((size(u.trained, u.adapters) for u in c.blocks), default=0)
    if early:
        yield Holding(
            "gradients", "gradient of the head", size(early, 0), ctx.trains & (at.BACKWARD | {at.LOSS_BACKWARD}) - {at.BACKWARD_ROOT}, "elements x bytes_each / ranks",
            {"elements": early, "bytes_each": base, "ranks": ranks}, SOURCE, dtype=ctx.job.precision.gradients,
        )  # fmt: skip
    yield Holding(
        "gradients", "gradients of the last block", one, ctx.trains & {at.BACKWARD_LAST}, "elements_of_a_block x bytes_each / ranks",
        {"elements_of_a_block": max((u.trained + u.adapters for u in c.blocks), default=0), "bytes_each": base, "ranks": ranks}, SOURCE,
        dtype=ctx.job.precision.gradients,
    )  # fmt: skip
    yield Holding("gradients", "gradients of the blocks", blocks, ctx.trains & {at.BACKWARD_FIRST}, formula, values, SOURCE, dtype=ctx.job.precision.gradients)
    yield Holding("gradients", "gradients", every, ctx.trains & {at.BACKWARD_ROOT, at.STEP}, formula, values, SOURCE, dtype=ctx.job.precision.gradients)
