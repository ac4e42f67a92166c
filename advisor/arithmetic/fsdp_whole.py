"""FSDP without a wrapping policy: the whole model is one unit, gathered at once for the forward pass and reduced at once after the backward pass.

Nothing is then divided while a step runs but the optimizer's part. The moments agree with the sharding code itself under fake tensors (torch 2.13,
Llama-3.1-8B on four ranks: within 1 MiB of the allocated peak, FSDP1 and FSDP2, with and without a mixed-precision policy).
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.fsdp_units import gathered, unsharded, unsynced
from advisor.arithmetic.parameters import Unit
from advisor.arithmetic.sharding import split
from advisor.ledger import Holding

FSDP1 = "torch/distributed/fsdp/fully_sharded_data_parallel.py auto_wrap_policy=None; _runtime_utils.py _post_forward_reshard: the root is not freed"
FSDP2 = "torch/distributed/fsdp/_fully_shard/_fully_shard.py fully_shard(model) alone: one parameter group; the root is not freed after forward"
CONCAT = "torch SplitBackward concatenates the views' gradients into the flat parameter's when the last of them is there"
REDUCE = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce: chunked copy in the reduction's dtype"


def one_unit(ctx: Context) -> bool:
    """Whether no module but the model itself is a sharding unit."""
    wrap = ctx.job.parallel.wrap
    return wrap is not None and wrap.blocks == "root"


def communication(ctx: Context) -> Iterator[Holding]:
    """The whole model, gathered."""
    c, each, first = ctx.counts, unsharded(ctx), ctx.strategy == "fsdp1"
    whole = sum(u.layers * gathered(ctx, u) for u in c.units)
    moments = ctx.trains - {at.STEP}
    copy_of, values = "trained weights" if c.trained else "frozen weights", {"elements": c.base, "bytes_each": each}
    yield Holding(
        "communication", "the whole model, gathered as one unit", whole, moments if first else moments - {at.BACKWARD_ROOT}, "elements x bytes_each",
        values, FSDP1 if first else FSDP2, layout="gathered", copy_of=copy_of, need="replaceable",
    )  # fmt: skip
    if not first and ctx.shard > 1:  # on one rank each parameter is copied, and no buffer is made (wait_for_unshard)
        yield Holding(
            "communication", "the all-gather's buffer of the whole model", whole, moments & {at.FORWARD, at.LOSS_FORWARD}, "elements x bytes_each", values,
            "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: the buffer of a gather is kept until the next one", layout="gathered",
            copy_of=copy_of, need="avoidable",
        )  # fmt: skip
    elif first and each != ctx.weight and ctx.shard > 1:
        narrow = split(c.base, ctx.shard)
        yield Holding(
            "communication", "this rank's shard in the dtype of the gather", narrow * each, moments & {at.FORWARD}, "elements x bytes_each / ranks",
            {**values, "ranks": ctx.shard}, "torch/distributed/fsdp/_flat_param.py _use_low_precision_shard", layout="sharded", copy_of=copy_of, need="needed",
        )  # fmt: skip


def gradients(ctx: Context) -> Iterator[Holding]:
    """Unsharded gradients that wait for the last of them, their reduction, and the shards they end in."""
    c, n, each, first = ctx.counts, ctx.shard, unsharded(ctx), ctx.strategy == "fsdp1"
    shared = first and bool(c.adapters)  # frozen weights share the one flat parameter with trainable ones: its gradient has their elements too

    def flat(unit: Unit) -> int:
        return unit.elements if shared else unit.trained + (0 if first else unit.adapters)

    outer, every = flat(c.outer), sum(u.layers * flat(u) for u in c.units)
    shards = sum(u.layers * (split(u.trained, n) * ctx.gradient + split(u.adapters, n) * ctx.adapter) for u in c.units)
    if shared:
        shards = split(every, n) * ctx.gradient
    source = FSDP1 if first else FSDP2
    values = {"elements": every, "bytes_each": ctx.gradient, "ranks": n}
    moments, accumulates = ctx.trains, ctx.accumulation > 1
    if unsynced(ctx):
        wide = each if first else max(ctx.reduce, each)
        yield Holding(
            "gradients", "whole gradients kept over micro batches", every * wide, moments - {at.STEP}, "elements x bytes_each",
            {"elements": every, "bytes_each": wide}, f"{source}; under no_sync gradients stay unsharded", need="avoidable",
        )  # fmt: skip
    kept = moments if accumulates and not unsynced(ctx) else moments & {at.STEP}
    yield Holding("gradients", "gradient shards", shards, kept, "elements x bytes_each / ranks", values, source, layout="sharded")
    if not every:
        return
    head = sum(i.total for i in c.outer.items if i.role == "head" and i.fate == "trained") if not shared else 0
    waiting = every - outer + head
    head_waits = ("gradient of the head, waiting for all others", head, {at.BACKWARD_LAST})
    all_wait = ("gradients of every layer, waiting for the last", waiting, {at.BACKWARD_FIRST})
    for name, count, where in (head_waits, all_wait):
        yield Holding(
            "gradients", name, count * each, moments & where, "elements x bytes_each", {"elements": count, "bytes_each": each},
            f"{source}: a unit reduces when all its gradients are there", layout="gathered",
        )  # fmt: skip
    both = each + (each if first else ctx.reduce)
    yield Holding(
        "gradients", "all gradients and their concatenation" if first else "all gradients and their reduction's input", every * both,
        moments & {at.BACKWARD_ROOT}, "elements x (bytes_each + joined_bytes)", {"elements": every, "bytes_each": each, "joined_bytes": both - each},
        CONCAT if first else REDUCE,
    )  # fmt: skip


def waiting(ctx: Context) -> int:
    """Bytes reserved beside what is allocated: the reduction's cast of FSDP1's whole gradient, made on its own stream."""
    every = sum(u.layers * u.trained for u in ctx.counts.units)
    return ctx.reduce * every if every and ctx.reduce != unsharded(ctx) and not unsynced(ctx) else 0
