"""What FSDP gathers and reduces as one: units, their gathered size, and who keeps gradients whole."""

from __future__ import annotations

from advisor.arithmetic import layouts
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import Unit
from advisor.arithmetic.sharding import quantised_ranks

TOGETHER = frozenset({"litgpt"})  # one unit a transformer block, adapters inside (litgpt finetune/lora.py, FSDPStrategy(auto_wrap_policy={Block}))
# who wraps all but the last micro batch in no_sync: accelerate Accelerator.no_sync (and those on it), Fabric no_backward_sync
NO_SYNC = frozenset({"hf-trainer", "trl", "accelerate", "axolotl", "llama-factory", "ms-swift", "litgpt"})


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
    """Micro batches before the last run under no_sync, so that their gradients stay whole on every rank.

    So do a pipeline's: torch distributed/pipelining/stage.py backward_maybe_with_nosync turns the sync off and reduces once, after the last.
    """
    stated = ctx.job.parallel.sync_each_microbatch
    if ctx.strategy == "fsdp2" and ctx.pipeline > 1 and (ctx.job.parallel.microbatches or ctx.accumulation) > 1:
        return stated is not True
    if ctx.accumulation == 1:
        return False
    return ctx.strategy == "fsdp1" and ctx.framework in NO_SYNC if stated is None else not stated


def never_gathered(ctx: Context) -> bool:
    """FSDP1 on one rank turns itself to NO_SHARD: what a rank stores is the whole, and is used as it is unless a policy wants another dtype.

    Source: torch/distributed/fsdp/_init_utils.py _init_core_state (world size 1); _flat_param.py FlatParamHandle.needs_unshard.
    """
    return ctx.strategy == "fsdp1" and ctx.shard == 1 and unsharded(ctx) == ctx.weight and not ctx.parameters_away


def stays_whole(ctx: Context) -> bool:
    """Units are not freed after their forward pass (SHARD_GRAD_OP, reshard_after_forward=False)."""
    return ctx.job.parallel.reshard_after_forward is False
