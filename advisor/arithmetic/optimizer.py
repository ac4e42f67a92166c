"""Optimizer states and the temporaries of its step."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic import states
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.arithmetic.sharding import SUB_GROUP, learned_share, split, state_ranks
from advisor.ledger import Holding

# who registers nn.Embedding for 32-bit states under 8-bit optimizers: transformers trainer.py create_optimizer, and trainers built on it
WIDE_EMBEDDINGS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth"})
ADAM = frozenset({"adamw", "paged-adamw", "cpu-adam"})


def holdings(ctx: Context) -> Iterator[Holding]:
    """States (from the second step on) and the step's temporary."""
    if not ctx.counts.learned:
        return
    ranks = state_ranks(ctx)
    share = learned_share(ctx, ranks)
    host = ctx.optimizer_away
    alive = ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}
    if "optimizer" in ctx.parked:
        alive -= {at.GENERATE, at.SCORE, at.HANDOVER}
    paged, ordinary = _sizes(ctx, ranks, share)
    values = {"elements": ctx.counts.learned, "bytes_each": ctx.state, "ranks": ranks, "optimizer": ctx.optimizer}
    layout = "sharded" if ranks > 1 else "dense"
    if ordinary:
        yield Holding(
            "optimizer", "optimizer states", ordinary, alive, "sum over tensors of the optimizer's states / ranks", values,
            "torch.optim, bitsandbytes, torchao: state by tensor (arithmetic/states.py)", dtype=_dtype(ctx), layout=layout, device="host" if host else "gpu",
        )  # fmt: skip
    if paged:
        yield Holding(
            "optimizer", "paged optimizer states", paged, alive, "sum over tensors of the optimizer's states / ranks", values,
            "bitsandbytes functional.get_paged: managed memory, which the driver moves; torch does not count it", dtype=_dtype(ctx), layout="paged",
            device="host",
        )  # fmt: skip
    if not host:
        yield from _temporary(ctx, ranks, share)


def _dtype(ctx: Context) -> str | None:
    return "int8" if ctx.optimizer in states.EIGHT_BIT else ctx.job.optimizer.states


def _sizes(ctx: Context, ranks: int, share: int) -> tuple[int, int]:
    """Paged and ordinary bytes on this rank."""
    name = ctx.optimizer
    if name in ADAM and name not in states.PAGED:
        return 0, 2 * _each(ctx, False) * (share - _adapters(ctx, ranks)) + 2 * _each(ctx, True) * _adapters(ctx, ranks)
    if name == "sgd":
        return 0, 0
    if name in states.ONE_STATE:
        return 0, _each(ctx, False) * share
    paged = ordinary = 0
    wide = ctx.framework in WIDE_EMBEDDINGS
    rank = ctx.job.method.rank or 128
    for unit in ctx.counts.units:
        for item in unit.items:
            if item.fate not in ("trained", "adapter"):
                continue
            size = states.of(name, item, _each(ctx, item.fate == "adapter"), rank=rank, wide_embedding=wide) * item.times * unit.layers
            if name in states.PAGED and item.elements >= states.PAGED_FROM:
                paged += size
            else:
                ordinary += size
    return split(paged, ranks), split(ordinary, ranks)


def _each(ctx: Context, adapter: bool) -> int:
    """Bytes of a full-precision state element: the parameter's own dtype unless the job says otherwise.

    Beside adapters, modules that are trained whole (peft modules_to_save) keep the base's dtype, and so do their states.
    """
    said = ctx.run.facts.get("optimizer.states")
    derived = said is not None and said.kind not in ("stated", "read") and not ctx.masters
    if ctx.job.optimizer.states not in ("fp32", "bf16", "fp16"):
        return ctx.adapter if adapter else ctx.state
    return ctx.weight if not adapter and derived and ctx.method in ADAPTED else ctx.state


def _adapters(ctx: Context, ranks: int) -> int:
    return split(ctx.counts.adapters, ranks)


def step_bytes(ctx: Context) -> int:
    """Bytes of the temporaries of the update on this rank; 0 where the optimizer steps on the host."""
    ranks = state_ranks(ctx)
    return 0 if ctx.optimizer_away else sum(h.bytes for h in _temporary(ctx, ranks, learned_share(ctx, ranks)))


def _temporary(ctx: Context, ranks: int, share: int) -> Iterator[Holding]:
    moment = ctx.trains & {at.STEP}
    how = ctx.job.optimizer.implementation or "foreach"
    at_once = min(share, SUB_GROUP) if ctx.strategy == "zero3" else share
    if ctx.optimizer in ("adamw", "adam-mini") and how == "foreach" and not ctx.job.optimizer.in_backward:
        adapters = min(at_once, _adapters(ctx, ranks))
        size = _each(ctx, False) * (at_once - adapters) + _each(ctx, True) * adapters
        yield Holding(
            "optimizer", "foreach temporary (square root of the second moment)", size, moment, "elements x bytes_each / ranks",
            {"elements": ctx.counts.learned, "bytes_each": ctx.state, "ranks": ranks}, "torch.optim.adam _multi_tensor_adam: torch._foreach_sqrt",
            dtype=ctx.job.optimizer.states,
        )  # fmt: skip
        return
    if ctx.optimizer == "adamw" and how == "for-loop":
        largest = at_once if ctx.strategy.startswith("zero") else split(_largest(ctx), ranks)
        yield Holding(
            "optimizer", "temporary of one tensor", 2 * ctx.state * largest, moment, "2 x largest_tensor x bytes_each",
            {"largest_tensor": largest, "bytes_each": ctx.state}, "torch.optim.adam _single_tensor_adam: sqrt, then its quotient",
        )  # fmt: skip
        return
    each = [states.step_temporary(ctx.optimizer, i, ctx.gradient, ctx.weight) for u in ctx.counts.units for i in u.items if i.fate in ("trained", "adapter")]
    largest_bytes = max(each, default=0)
    if largest_bytes:
        yield Holding(
            "optimizer", "temporaries of one tensor's step", split(largest_bytes, ranks), moment, "largest over tensors / ranks",
            {"largest": largest_bytes, "ranks": ranks}, "the optimizer's update, tensor by tensor (arithmetic/states.py)",
        )  # fmt: skip


def _largest(ctx: Context) -> int:
    return max((i.elements for u in ctx.counts.units for i in u.items if i.fate in ("trained", "adapter")), default=0)
