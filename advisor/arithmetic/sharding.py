"""Over how many ranks each kind of state is divided, and what padding adds."""

from __future__ import annotations

from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import Unit

BITSANDBYTES = frozenset({"nf4", "fp4", "int8"})
ON_ACCELERATE = frozenset({"hf-trainer", "trl", "accelerate", "axolotl", "llama-factory", "ms-swift"})
DIVIDES_WEIGHTS = frozenset({"fsdp1", "fsdp2", "zero3", "megatron-fsdp"})
DIVIDES_GRADIENTS = frozenset({"fsdp1", "fsdp2", "zero2", "zero3", "megatron-fsdp"})
DIVIDES_STATES = frozenset({"fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron-distributed", "megatron-fsdp"})

SUB_GROUP = 1_000_000_000  # DeepSpeed zero/config.py sub_group_size: elements that stage 3's optimizer steps at once


def weight_ranks(ctx: Context) -> int:
    """Ranks that share one copy of the weights."""
    return ctx.shard if ctx.strategy in DIVIDES_WEIGHTS else 1


def quantised_ranks(ctx: Context) -> int:
    """Ranks that share the quantised base: FSDP2 through accelerate leaves frozen bitsandbytes parameters out, whole on every rank.

    accelerate utils/fsdp_utils.py fsdp2_prepare_model excludes Params4bit unless it is stored in a float dtype.
    """
    if ctx.strategy == "fsdp2" and ctx.base in BITSANDBYTES and ctx.framework in ON_ACCELERATE:
        return 1
    return weight_ranks(ctx)


def gradient_ranks(ctx: Context) -> int:
    """Ranks that share one copy of the gradients at the step."""
    return ctx.shard if ctx.strategy in DIVIDES_GRADIENTS else 1


def state_ranks(ctx: Context) -> int:
    """Ranks that share one copy of masters and optimizer states."""
    return ctx.shard if ctx.strategy in DIVIDES_STATES else 1


def split(elements: int, ranks: int) -> int:
    """A rank's share, padded up."""
    return -(-elements // ranks)


def learned_share(ctx: Context, ranks: int) -> int:
    """Trained and adapter elements on a rank when state is divided over ``ranks``; experts over their own, smaller group."""
    if ranks == 1:
        return ctx.counts.learned
    total = 0
    for unit in ctx.counts.units:
        experts = unit.experts_trained
        own = split(unit.trained - experts + unit.adapters, ranks)
        total += unit.layers * (own + (split(experts, ctx.expert_shard) if ctx.expert > 1 else split(experts, ranks) if experts else 0))
    return total


def unit_share(unit: Unit, ranks: int) -> int:
    """All elements of one layer of a unit on a rank."""
    return split(unit.elements, ranks)
