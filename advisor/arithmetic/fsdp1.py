"""FSDP1: flat parameters gathered unit by unit, gradients that wait for a split's backward, and what its hooks keep.

Source: torch/distributed/fsdp/_runtime_utils.py and _flat_param.py (torch 2.4 to 2.13), torch/autograd/graph.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import fsdp_whole, settings
from advisor.arithmetic import moments as at
from advisor.arithmetic.checkpointing import checkpoints_itself
from advisor.arithmetic.context import Context
from advisor.arithmetic.fsdp_units import adapters_apart, gathered, largest_block, never_gathered, stays_whole, unsharded, unsynced
from advisor.arithmetic.parameters import Unit
from advisor.arithmetic.sharding import split
from advisor.ledger import Holding

FSDP1 = "torch/distributed/fsdp/_runtime_utils.py"


def communication(ctx: Context) -> Iterator[Holding]:
    """Gathered parameters."""
    c, each = ctx.counts, unsharded(ctx)
    root, block = gathered(ctx, c.outer), gathered(ctx, largest_block(ctx))
    moments = ctx.trains - {at.STEP}
    yield Holding(
        "communication", "gathered root unit (embedding, head, last norm)", root, moments, "root_elements x bytes_each",
        {"root_elements": c.outer.elements, "bytes_each": each}, f"{FSDP1} _post_forward_reshard: the root is not freed after forward", layout="gathered",
        copy_of="trained weights" if c.trained else "frozen weights", need="needed",
    )  # fmt: skip
    values = {"block_elements": largest_block(ctx).elements, "bytes_each": each}
    if stays_whole(ctx):
        every = sum(u.layers * gathered(ctx, u) for u in c.blocks)
        yield Holding(
            "communication", "gathered blocks (not freed after forward)", every, moments - {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": c.base, "bytes_each": each}, f"{FSDP1}: SHARD_GRAD_OP keeps units whole until their backward", layout="gathered",
            copy_of="trained weights", need="replaceable",
        )  # fmt: skip
        return
    yield Holding(
        "communication", "gathered block", block, moments & {at.FORWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST}, "block_elements x bytes_each",
        values, f"{FSDP1} _unshard", layout="gathered", copy_of="trained weights" if c.trained else "frozen weights", need="needed",
    )  # fmt: skip
    yield Holding(
        "communication", "prefetched block", block, moments & _ahead(ctx), "block_elements x bytes_each", values,
        f"{FSDP1} _pre_backward_hook, _prefetch_handle: the next unit in backward order is gathered while this one runs", layout="gathered",
        copy_of="trained weights" if c.trained else "frozen weights", need="replaceable",
    )  # fmt: skip
    yield from _kept_by_hooks(ctx)


def _ahead(ctx: Context) -> frozenset[str]:
    """The moments at which the next unit in backward order is there already.

    A unit is gathered ahead only if its outputs got hooks (``_needs_pre_backward_unshard``), which a forward pass without gradients does not
    register: none is where reentrant checkpointing calls the wrapped block from outside. Else the root's own hook gathers the last block before
    the loss's backward begins, and each block the one before it; or, with adapters as units of their own, its own last adapter.
    """
    prefetch = ctx.job.parallel.prefetch or "backward-pre"
    if prefetch == "none" or _recomputed_from_outside(ctx):
        return frozenset()
    early = {at.LOSS_BACKWARD} if prefetch == "backward-pre" else set()
    apart = bool(ctx.counts.adapters) and adapters_apart(ctx)
    return frozenset(early | ({at.BACKWARD_LAST} if ctx.layers > 1 and not apart else set()))


def _recomputed_from_outside(ctx: Context) -> bool:
    """Reentrant checkpointing around FSDP's wrapper: the forward pass has no gradients, and the recomputed block's input is a leaf."""
    return ctx.checkpointing == "full" and ctx.reentrant and not checkpoints_itself(ctx)


def _kept_by_hooks(ctx: Context) -> Iterator[Holding]:
    """Inputs of recomputed blocks, and their gradients, that live to the end of backward.

    A frozen unit registers a multi-gradient hook on its inputs (_register_post_backward_reshard_only_hook). Under reentrant
    checkpointing the inputs are detached leaves, whose gradient accumulators the hook's closure holds: a cycle through the leaf's own
    hooks, broken only when _finalize_params drops the handles. So when the first block runs every other one still holds both; the gradient of
    the second's input is the gradient of the first's output, which the running block counts. Where blocks checkpoint themselves
    (GradientCheckpointingLayer), the unit's hook is outside of what is recomputed and its input is no leaf: nothing stays.

    Agrees with FSDP1's own code on the meta device (transformers 4.48.1, adapters with dropout): 15,144.7 of a measured 15,144.9 MB.
    """
    if not ctx.counts.adapters or not adapters_apart(ctx) or not _recomputed_from_outside(ctx):
        return
    each = settings.stream(ctx)
    one = ctx.tokens * ctx.arch.hidden * each
    values = {"layers": ctx.layers, "tokens": ctx.tokens, "hidden": ctx.arch.hidden, "bytes_each": each}
    source = "torch/distributed/fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook, torch/autograd/graph.py register_multi_grad_hook"
    yield Holding(
        "activations", "recomputed blocks' inputs kept by FSDP's hooks", (ctx.layers - 1) * one, ctx.trains & {at.BACKWARD_FIRST},
        "(layers - 1) x tokens x hidden x bytes_each", values, source, need="avoidable",
    )  # fmt: skip
    yield Holding(
        "activations", "gradients of blocks' inputs kept by FSDP's hooks", max(0, ctx.layers - 2) * one, ctx.trains & {at.BACKWARD_FIRST},
        "(layers - 2) x tokens x hidden x bytes_each", values, source, need="avoidable",
    )  # fmt: skip


def waiting(ctx: Context) -> int:
    """Bytes that are freed and serve no request yet: ``record_stream`` holds them until the other stream has passed them.

    The host runs ahead of the card by two frees of gathered units (_runtime_utils.py _unshard: the rate limiter waits for the third), so that one
    unit more is reserved than are gathered at a moment. A unit's gradient waits in the same way for its reduction (_post_backward_hook), and where
    that is in another dtype its cast is made on the reduction's stream, where the one before still waits; the root's is a block of its own size.
    """
    if fsdp_whole.one_unit(ctx):
        return fsdp_whole.waiting(ctx)
    block = largest_block(ctx)
    total = 0 if stays_whole(ctx) or never_gathered(ctx) else gathered(ctx, block)
    trained, each = block.trained, unsharded(ctx)
    if trained and not unsynced(ctx):
        total += trained * each
        if ctx.reduce != each:
            root = ctx.counts.outer.trained
            total += ctx.reduce * (2 * trained + (root if root > trained else 0))
    return total


def gradients(ctx: Context) -> Iterator[Holding]:
    """Unsharded gradients on their way, and the shards they end in."""
    c, n, each = ctx.counts, ctx.shard, unsharded(ctx)
    whole = bool(c.adapters) and not adapters_apart(ctx)  # frozen weights share a flat parameter with trainable ones

    def flat(unit: Unit) -> int:
        return unit.elements if whole and unit.adapters else unit.trained

    def own(unit: Unit) -> int:
        return split(flat(unit), n) * ctx.gradient + (0 if whole else split(unit.adapters, n) * ctx.adapter)

    root, block = c.outer, max(c.blocks, key=flat, default=c.outer)
    every = sum(u.layers * own(u) for u in c.units)
    moments = ctx.trains
    values = {"elements": sum(u.layers * flat(u) for u in c.units) + (0 if whole else c.adapters), "bytes_each": ctx.gradient, "ranks": n}
    formula = "elements x bytes_each / ranks"
    if unsynced(ctx):
        total = sum(u.layers * (flat(u) * each + (0 if whole else u.adapters * ctx.adapter)) for u in c.units)
        yield Holding(
            "gradients", "whole gradients kept over micro batches", total, moments - {at.STEP}, "elements x bytes_each",
            {"elements": values["elements"], "bytes_each": each}, f"{FSDP1} _post_backward_hook: under no_sync gradients stay unsharded", need="avoidable",
        )  # fmt: skip
        yield Holding("gradients", "gradient shards", every, moments & {at.STEP}, formula, values, FSDP1, layout="sharded")
    elif ctx.accumulation > 1:
        yield Holding("gradients", "gradient shards", every, moments, formula, values, f"{FSDP1} _reduce_grad", layout="sharded")
    else:
        yield Holding(
            "gradients",
            "gradient shards of the blocks",
            every - own(root),
            moments & {at.BACKWARD_FIRST},
            formula,
            values,
            f"{FSDP1} _reduce_grad",
            layout="sharded",
        )
        yield Holding("gradients", "gradient shards", every, moments & {at.BACKWARD_ROOT, at.STEP}, formula, values, f"{FSDP1} _reduce_grad", layout="sharded")
    if flat(block):
        yield Holding(
            "gradients", "unsharded gradient of a block", flat(block) * each, moments & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "block_elements x bytes_each",
            {"block_elements": flat(block), "bytes_each": each}, "torch autograd, split of the flat parameter", layout="gathered",
        )  # fmt: skip
    if flat(root):
        head = sum(i.total for i in root.items if i.role == "head") or (ctx.arch.embedding_parameters if ctx.has_head else 0)
        yield Holding(
            "gradients", "gradient of the head, waiting for the root's", head * each, moments & {at.BACKWARD_LAST, at.BACKWARD_FIRST},
            "head_elements x bytes_each", {"head_elements": head, "bytes_each": each}, "torch autograd: a split's backward waits for all its outputs",
        )  # fmt: skip
        yield Holding(
            "gradients", "the root's gradients and their concatenation", 2 * flat(root) * each, moments & {at.BACKWARD_ROOT}, "2 x root_elements x bytes_each",
            {"root_elements": flat(root), "bytes_each": each}, "torch SplitBackward concatenates the views' gradients into the flat parameter's",
        )  # fmt: skip
