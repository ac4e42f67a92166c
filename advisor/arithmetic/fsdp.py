"""Fully sharded data parallel: what is gathered and reduced beside the shards, for FSDP1 (flat parameters) and FSDP2 (per parameter).

Source: torch/distributed/fsdp/_runtime_utils.py and _flat_param.py (FSDP1), torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and
_fsdp_collectives.py (FSDP2), checked against real sharding code under fake tensors (root reduction and optimizer step equal within 1 kB).
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import layouts, settings
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import Unit
from advisor.arithmetic.sharding import quantised_ranks, split
from advisor.ledger import Holding

TOGETHER = frozenset({"litgpt"})  # one unit a transformer block, adapters inside (litgpt finetune/lora.py, FSDPStrategy(auto_wrap_policy={Block}))
# who wraps all but the last micro batch in no_sync: accelerate Accelerator.no_sync (and those on it), Fabric no_backward_sync
NO_SYNC = frozenset({"hf-trainer", "trl", "accelerate", "axolotl", "llama-factory", "ms-swift", "litgpt"})
FSDP1 = "torch/distributed/fsdp/_runtime_utils.py"
FSDP2 = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"


def unsharded(ctx: Context) -> int:
    """Bytes of an unsharded element: the mixed-precision policy's parameter dtype, else the shard's own."""
    return ctx.compute if ctx.job.precision.mixed == "fsdp" else ctx.weight


def gathered(ctx: Context, unit: Unit) -> int:
    """Bytes of one whole layer of a unit as it is gathered: constants of quantised layouts are never sharded, so never gathered."""
    each = unsharded(ctx)
    quantised = layouts.packed(ctx.base, unit.quantised) if unit.quantised and quantised_ranks(ctx) > 1 else 0
    together = unit.adapters * (each if ctx.job.precision.mixed == "fsdp" else ctx.adapter)
    return (unit.frozen + unit.trained) * each + quantised + together


def largest_block(ctx: Context) -> Unit:
    """The block whose gathered form is largest."""
    return max(ctx.counts.blocks or (ctx.counts.outer,), key=lambda u: gathered(ctx, u))


def adapters_apart(ctx: Context) -> bool:
    """Adapters are sharding units of their own (peft's wrap policy), so that the frozen base needs no gradient."""
    wrap = ctx.job.parallel.wrap
    if wrap is not None and wrap.adapters is not None:
        return wrap.adapters == "apart"
    return ctx.framework not in TOGETHER


def unsynced(ctx: Context) -> bool:
    """Micro batches before the last run under no_sync, so that their gradients stay whole on every rank."""
    if ctx.accumulation == 1:
        return False
    stated = ctx.job.parallel.sync_each_microbatch
    return ctx.strategy == "fsdp1" and ctx.framework in NO_SYNC if stated is None else not stated


def communication(ctx: Context) -> Iterator[Holding]:
    """Gathered parameters."""
    return _gathered_1(ctx) if ctx.strategy == "fsdp1" else _gathered_2(ctx)


def gradients(ctx: Context) -> Iterator[Holding]:
    """Unsharded gradients on their way, and the shards they end in."""
    return _gradients_1(ctx) if ctx.strategy == "fsdp1" else _gradients_2(ctx)


def _kept(ctx: Context) -> bool:
    return ctx.job.parallel.reshard_after_forward is False


def _gathered_1(ctx: Context) -> Iterator[Holding]:
    c, each = ctx.counts, unsharded(ctx)
    root, block = gathered(ctx, c.outer), gathered(ctx, largest_block(ctx))
    moments = ctx.trains - {at.STEP}
    yield Holding(
        "communication", "gathered root unit (embedding, head, last norm)", root, moments, "root_elements x bytes_each",
        {"root_elements": c.outer.elements, "bytes_each": each}, f"{FSDP1} _post_forward_reshard: the root is not freed after forward", layout="gathered",
        copy_of="trained weights" if c.trained else "frozen weights", need="needed",
    )  # fmt: skip
    values = {"block_elements": largest_block(ctx).elements, "bytes_each": each}
    if _kept(ctx):
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
    prefetch = ctx.job.parallel.prefetch or "backward-pre"
    if prefetch != "none" and ctx.layers > 1 and (not c.adapters or not adapters_apart(ctx)):
        yield Holding(
            "communication", "prefetched block", block, moments & {at.BACKWARD_LAST}, "block_elements x bytes_each", values,
            f"{FSDP1} _prefetch_handle: the next unit in backward order is gathered while this one runs", layout="gathered",
            copy_of="trained weights" if c.trained else "frozen weights", need="replaceable",
        )  # fmt: skip
    yield from _kept_by_hooks(ctx)


def _kept_by_hooks(ctx: Context) -> Iterator[Holding]:
    """Inputs of recomputed blocks, and their gradients, that live to the end of backward.

    A frozen unit registers a multi-gradient hook on its inputs (_register_post_backward_reshard_only_hook). Under reentrant
    checkpointing the inputs are detached leaves, whose gradient accumulators the hook's closure holds: a cycle through the leaf's own
    hooks, broken only when _finalize_params drops the handles. So at the end of backward every block still holds both.
    """
    if not ctx.counts.adapters or not adapters_apart(ctx) or ctx.checkpointing != "full" or not ctx.reentrant:
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
        "activations", "gradients of blocks' inputs kept by FSDP's hooks", ctx.layers * one, ctx.trains & {at.BACKWARD_FIRST},
        "layers x tokens x hidden x bytes_each", values, source, need="avoidable",
    )  # fmt: skip


def _gradients_1(ctx: Context) -> Iterator[Holding]:
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


def _own_units(ctx: Context) -> bool:
    """Embedding and head are units of their own, so that nothing but the last norm is in the root."""
    wrap = ctx.job.parallel.wrap
    return wrap is not None and wrap.embeddings == "own unit"


def _gathered_2(ctx: Context) -> Iterator[Holding]:
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
    if _kept(ctx):
        every = sum(u.layers * gathered(ctx, u) for u in c.blocks)
        yield Holding(
            "communication", "gathered blocks (not freed after forward)", every, moments - {at.BACKWARD_ROOT}, "elements x bytes_each",
            {"elements": c.base, "bytes_each": each}, f"{FSDP2}: reshard_after_forward=False", layout="gathered", copy_of=source, need="replaceable",
        )  # fmt: skip
        return
    yield Holding(
        "communication", "gathered block", block, moments - {at.BACKWARD_ROOT, at.LOSS_FORWARD}, "block_elements x bytes_each", values, f"{FSDP2} unshard",
        layout="gathered", copy_of=source, need="needed",
    )  # fmt: skip
    yield Holding(
        "communication", "next block's all-gather buffer", block, moments & {at.FORWARD, at.LOSS_FORWARD, at.BACKWARD_LAST}, "block_elements x bytes_each",
        values,
        f"{FSDP2}: the buffer of one gather lives until the next one's copy-out", layout="gathered", copy_of=source, need="needed",
    )  # fmt: skip


def _gradients_2(ctx: Context) -> Iterator[Holding]:
    c, n, each = ctx.counts, ctx.shard, unsharded(ctx)

    def own(unit: Unit) -> int:
        return split(unit.trained, n) * ctx.gradient + split(unit.adapters, n) * ctx.adapter

    moments = ctx.trains
    every = sum(u.layers * own(u) for u in c.units)
    values = {"elements": c.learned, "bytes_each": ctx.gradient, "ranks": n}
    if unsynced(ctx):
        wide = max(ctx.reduce, each)
        yield Holding(
            "gradients", "whole gradients kept over micro batches", c.learned * wide, moments - {at.STEP}, "elements x bytes_each",
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
    size = block.trained * each + block.adapters * (each if ctx.job.precision.mixed == "fsdp" else ctx.adapter)
    wide = (block.trained + block.adapters) * ctx.reduce
    yield Holding(
        "gradients", "unsharded gradient of a block", size, moments & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "block_elements x bytes_each",
        {"block_elements": block.trained + block.adapters, "bytes_each": each}, FSDP2, layout="gathered",
    )  # fmt: skip
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
        yield Holding(
            "gradients", "the root's gradients and their reduction's input", last * (each + ctx.reduce), moments & {at.BACKWARD_ROOT},
            "root_elements x (bytes_each + reduce_bytes)", {"root_elements": last, "bytes_each": each, "reduce_bytes": ctx.reduce},
            "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce",
        )  # fmt: skip
