"""Other models beside the policy: a frozen reference, a reward model, a critic that is trained too."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import split
from advisor.arithmetic.weights import quantised_bytes
from advisor.ledger import Holding

DIVIDED = frozenset({"fsdp1", "fsdp2", "zero3", "megatron-fsdp"})
PREPARED = "trl models/utils.py prepare_deepspeed (only stage 3 divides it; any other stage replicates it), prepare_fsdp"


def holdings(ctx: Context) -> Iterator[Holding]:
    """Copies as the job asks for them; ``adapter-off`` and ``precomputed`` hold none."""
    job = ctx.job
    if job.reference in ("copy", "offloaded"):
        away = job.reference == "offloaded"
        yield Holding(
            "reference", "frozen reference model", frozen_copy(ctx), ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}, "elements x bytes_each / ranks",
            _values(ctx), PREPARED, dtype=job.precision.weights, layout=ctx.base if ctx.base != "none" else "dense", device="host" if away else "gpu",
            copy_of=None if away else "trained weights", need=None if away else "replaceable",
        )  # fmt: skip
    if job.reward == "copy":
        yield Holding(
            "reward", "reward model of the policy's shape", frozen_copy(ctx), ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY},
            "elements x bytes_each / ranks", _values(ctx), PREPARED, dtype=job.precision.weights,
            error="its own config is not known: the policy's shape is assumed",
        )  # fmt: skip
    if job.critic == "copy":
        yield from _critic(ctx)


def ranks_of(ctx: Context) -> int:
    """Ranks that share a frozen copy: those of the strategy where it divides parameters, else none."""
    return ctx.shard if ctx.strategy in DIVIDED else 1


def frozen_copy(ctx: Context, each: int | None = None) -> int:
    """Bytes on this rank of one more frozen copy of the base, in the base's layout or in ``each`` bytes an element."""
    c, ranks = ctx.counts, ranks_of(ctx)
    if each is not None:
        return each * split(c.base, ranks)
    payload, constants = quantised_bytes(ctx) if c.quantised else (0, 0)
    return ctx.weight * split(c.trained + c.frozen, ranks) + split(payload, ranks) + constants


def _values(ctx: Context) -> dict[str, int]:
    return {"elements": ctx.counts.base, "bytes_each": ctx.weight, "ranks": ranks_of(ctx)}


def _critic(ctx: Context) -> Iterator[Holding]:
    """The critic has weights, masters and states of its own all the time, gradients only while it is trained."""
    c, job = ctx.counts, ctx.job
    over = ranks_of(ctx)
    states = ctx.shard if ctx.strategy in DIVIDED or ctx.strategy in ("zero1", "zero2", "megatron-distributed") else 1
    alive = ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}
    values = {"elements": c.base, "bytes_each": ctx.weight, "ranks": over}
    error = "its own config is not known: the policy's shape is assumed"
    yield Holding(
        "critic", "critic weights", frozen_copy(ctx), alive, "elements x bytes_each / ranks", values, PREPARED, dtype=job.precision.weights, error=error
    )
    if c.learned and not ctx.optimizer_away:
        each = 2 * ctx.state + (4 if job.precision.master == "fp32" else 0)
        yield Holding(
            "critic", "critic optimizer states and masters", each * split(c.learned, states), alive, "elements x bytes_each / ranks",
            {"elements": c.learned, "bytes_each": each, "ranks": states}, "the critic is trained with the policy's optimizer settings", error=error,
        )  # fmt: skip
