"""How a run really differs from its job: every deviation as a holding of its own, so that the page can point at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.dtypes import bytes_of
from advisor.arithmetic.models import frozen_copy
from advisor.arithmetic.sharding import quantised_ranks, split, weight_ranks
from advisor.arithmetic.weights import quantised_bytes
from advisor.deviation import Deviation
from advisor.ledger import Holding

BASE_OF = {"weights": "trained weights", "reference": "frozen reference model", "rollout-weights": "engine's weights"}
MODELS = frozenset({"weights", "reference", "reward", "critic", "rollout-weights"})


def holdings(ctx: Context, held: Sequence[Holding]) -> Iterator[Holding]:
    """Extra holdings, settings without effect in some phases, widening of one part, and what earlier steps left behind."""
    for d in ctx.deviations:
        if d.kind == "extra-holding":
            yield from _extra(ctx, d, held)
        elif d.kind == "ineffective" and d.phases:
            yield from _ineffective(ctx, d)
        elif d.kind == "widened" and d.part is not None:
            yield from _widened(d, held)
        elif d.kind == "retained":
            yield from _retained(ctx, d, held)


def _source(d: Deviation) -> str:
    return f"deviation: {d.cause}" if d.cause else "deviation"


def _alive(ctx: Context, d: Deviation) -> frozenset[str]:
    return at.of_phases(d.phases) & ctx.moments


def _extra(ctx: Context, d: Deviation, held: Sequence[Holding]) -> Iterator[Holding]:
    part = d.part or "unattributed"
    if d.bytes:
        size, values = round(d.bytes * d.times), {"bytes": d.bytes, "times": d.times}
        formula = "bytes x times"
    elif part in MODELS:
        each = bytes_of(d.dtype, ctx.weight) if d.dtype in ("fp32", "bf16", "fp16", "fp8", "int8") else None
        one = frozen_copy(ctx, each)
        size, values = round(one * d.times), {"one_copy": one, "times": d.times}
        formula = "one_copy x times"
    else:
        one = largest(held, part)
        size, values = round(one * d.times), {"part_bytes": one, "times": d.times}
        formula = "part_bytes x times"
    yield Holding(
        part, f"one more of: {part}", size, _alive(ctx, d), formula, values, _source(d), dtype=d.dtype, copy_of=BASE_OF.get(part, part), need="avoidable"
    )


def _ineffective(ctx: Context, d: Deviation) -> Iterator[Holding]:
    if d.field == "method.base" and ctx.counts.quantised:
        payload, _ = quantised_bytes(ctx)
        wide = ctx.weight * ctx.counts.quantised
        yield Holding(
            "weights", "quantised base in 16 bit", max(0, split(wide, quantised_ranks(ctx)) - split(payload, quantised_ranks(ctx))), _alive(ctx, d),
            "elements x bytes_each - payload_bytes", {"elements": ctx.counts.quantised, "bytes_each": ctx.weight, "payload_bytes": payload}, _source(d),
            copy_of=f"base in {ctx.base}", need="avoidable",
        )  # fmt: skip
        return
    if d.field != "parallel.strategy" or weight_ranks(ctx) == 1:
        return
    c, ranks = ctx.counts, weight_ranks(ctx)
    # the whole model while loading is counted with loading
    moments = (at.of_phases(d.phases) & ctx.moments) - {at.LOAD_MATERIALISE, at.LOAD_READY}
    missing = ctx.weight * (c.trained + c.frozen - split(c.trained + c.frozen, ranks))
    yield Holding(
        "weights", "weights that are not divided", missing, moments, "elements x bytes_each x (ranks - 1) / ranks",
        {"elements": c.base, "bytes_each": ctx.weight, "ranks": ranks}, _source(d), copy_of="trained weights", need="avoidable",
    )  # fmt: skip


def _widened(d: Deviation, held: Sequence[Holding]) -> Iterator[Holding]:
    wide = bytes_of(d.to, 4)
    for h in held:
        if h.part == d.part and h.device == "gpu" and h.bytes:
            narrow = bytes_of(h.dtype, 2)
            if wide > narrow:
                yield Holding(
                    h.part, f"{h.name}: {d.to} in place of {h.dtype or '16 bit'}", h.bytes * (wide - narrow) // narrow, h.moments,
                    "bytes x (wide - narrow) / narrow", {"bytes": h.bytes, "wide": wide, "narrow": narrow}, _source(d), dtype=d.to, need="avoidable",
                )  # fmt: skip


def _retained(ctx: Context, d: Deviation, held: Sequence[Holding]) -> Iterator[Holding]:
    part = d.part or "activations"
    if part == "activations":
        one = sum(h.bytes for h in held if h.part in ("activations", "attention", "dequantised") and at.LOSS_FORWARD in h.moments and h.device == "gpu")
    elif part == "logits":
        one = ctx.tokens * -(-ctx.arch.vocab // ctx.tensor) * ctx.compute
    else:
        one = largest(held, part)
    yield Holding(
        part,
        f"{part} of earlier steps still alive",
        one * d.steps,
        ctx.trains,
        "one_step x steps",
        {"one_step": one, "steps": d.steps},
        _source(d),
        need="avoidable",
    )


def largest(held: Sequence[Holding], part: str) -> int:
    """Bytes of a part at its own largest moment."""
    sums: dict[str, int] = {}
    for h in held:
        if h.part == part and h.device == "gpu":
            for moment in h.moments:
                sums[moment] = sums.get(moment, 0) + h.bytes
    return max(sums.values(), default=0)
