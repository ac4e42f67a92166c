"""Activations: what autograd keeps of the blocks, tensor by tensor, and what a block needs for the moment it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.arithmetic import moments as at
from advisor.arithmetic import settings
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.blocks.tape import Counted, Size, Step
from advisor.arithmetic.checkpointing import checkpoints, kept_at_rest, offloaded, recomputed_layers, reentrant
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

UNTIL_LOSS = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD})
LAST = frozenset({at.BACKWARD_LAST})
FIRST = frozenset({at.BACKWARD_FIRST})
FORWARD_ONLY = frozenset({at.FORWARD})
FORMULA = "layers x (tokens x bytes a token + tokens x keys x bytes a pair + fixed bytes)"
SOURCE = "autograd's saved tensors of the modelling code, operation by operation (arithmetic/blocks)"
REENTRANT = "torch.utils.checkpoint.CheckpointFunction.backward holds the outputs it recomputed"
UNSHARDED = frozenset({"none", "ddp"})


def holdings(ctx: Context) -> Iterator[Holding]:
    """Saved activations, checkpoints, and the temporaries of the block that runs, for the text blocks of this rank."""
    if not ctx.blocks:
        return
    counted = [(settled(block, ctx.arch.hidden, settings.of(ctx, block)), layers) for block, layers in ctx.blocks]
    last = max((c for c, _ in counted), key=lambda c: _heaviest(ctx, c))
    others = 0
    for c, layers in counted:
        recomputed = recomputed_layers(ctx, layers)
        if recomputed:
            yield from checkpoints(ctx, c, recomputed)
        whole = layers - recomputed
        if not whole:
            continue
        kept, _ = kept_at_rest(ctx, c)
        away, kept = offloaded(ctx, kept)
        for s in away:
            yield replace(_holding(ctx, f"{s.name} (offloaded)", s.size, whole, UNTIL_LOSS | LAST, s.element), device="host")
        for s in kept:
            yield _holding(ctx, s.name, s.size, whole, UNTIL_LOSS, s.element)
        each = sum(_bytes(ctx, s.size) for s in kept)
        others += each * (whole - 1 if c is last and not recomputed else whole)
        if c.lasting[0] and ctx.source == "litgpt":
            yield _lasting(ctx, c, layers)
    if others:
        yield Holding("activations", "kept by the other blocks", others, LAST, "bytes of all blocks but the running one", {"bytes": others}, SOURCE)
    inside = ctx.checkpointing == "full"
    yield from _running(ctx, last, LAST, with_input=not inside)
    yield from _running(ctx, last, FIRST, with_input=not inside)
    if inside and reentrant(ctx):
        out = _bytes(ctx, last.output)
        values = {"bytes": out}
        yield Holding("activations", "recomputed output of the running block", out, LAST | FIRST, "bytes of the output", values, REENTRANT)
    if inside:
        yield from _forward(ctx, max((c for c, _ in counted), key=lambda c: _bytes(ctx, c.total)), kept=False)
    else:
        yield from _forward(ctx, last, kept=True)


def _lasting(ctx: Context, c: Counted, layers: int) -> Holding:
    each = _bytes(ctx, c.lasting)
    return Holding(
        "activations", "inputs of 4-bit layers from the step before", layers * each, frozenset({at.FORWARD, at.LOSS_FORWARD}), "layers x bytes a block",
        {"layers": layers, "bytes a block": each}, "bitsandbytes < 0.43.2 MatMul4Bit keeps its input; litgpt's loop names the old loss",
    )  # fmt: skip


def _bytes(ctx: Context, size: Size) -> int:
    return round(size[0] * ctx.tokens + size[1] * ctx.tokens * ctx.seq_len + size[2] + size[3])


def _born(ctx: Context) -> int:
    """Bytes of a weight-gradient element that stays once born in the running block; 0 where gradients are counted elsewhere."""
    return ctx.gradient if ctx.strategy in UNSHARDED and not ctx.gradients_kept and not ctx.job.optimizer.in_backward else 0


def _worst(ctx: Context, c: Counted) -> Step:
    born = _born(ctx)
    tokens, pairs = ctx.tokens, ctx.tokens * ctx.seq_len

    def size(s: Step) -> float:
        a, b = s.saved, s.live
        return (a[0] + b[0]) * tokens + (a[1] + b[1]) * pairs + a[2] + b[2] + a[3] + b[3] + s.born * born

    return max(c.backward, key=size)


def _heaviest(ctx: Context, c: Counted) -> int:
    step = _worst(ctx, c)
    return _bytes(ctx, step.saved) + _bytes(ctx, step.live)


def _holding(ctx: Context, name: str, size: Size, layers: int, moments: frozenset[str], element: int | None = None) -> Holding:
    part = "attention" if size[1] else "dequantised" if size[3] and not size[0] else "activations"
    values = {"layers": layers, "tokens": ctx.tokens, "bytes a token": size[0], "keys": ctx.seq_len, "bytes a pair": size[1], "fixed bytes": size[2] + size[3]}
    dtype = {1: "int8", 2: "bf16", 4: "fp32"}.get(element or 0)
    return Holding(part, name, layers * _bytes(ctx, size), moments, FORMULA, values, SOURCE, dtype=dtype)


def _running(ctx: Context, c: Counted, moments: frozenset[str], *, with_input: bool) -> Iterator[Holding]:
    step = _worst(ctx, c)
    if with_input and c.entry_saved:
        yield _holding(ctx, "input of the running block", c.input, 1, moments)
    for i in step.kept:
        s = c.saved[i]
        yield _holding(ctx, f"{s.name} (block in backward)", s.size, 1, moments, s.element)
    live = step.live
    if live[0] or live[1]:
        yield _holding(ctx, f"gradients and temporaries of a block's backward, at {step.operation}", (live[0], live[1], live[2], 0.0), 1, moments)
    if live[3]:
        yield _holding(ctx, "dequantised weight in backward", (0.0, 0.0, 0.0, live[3]), 1, moments)
    born = _born(ctx)
    if born and step.born:
        values = {"elements": round(step.born), "bytes": born}
        yield Holding("gradients", "weight gradients of the running block so far", round(step.born) * born, moments, "elements x bytes", values, SOURCE)


def _forward(ctx: Context, c: Counted, *, kept: bool) -> Iterator[Holding]:
    size = max(c.forward if kept else c.bare, key=lambda f: _bytes(ctx, f))
    if _bytes(ctx, size) <= 0:
        return
    yield _holding(ctx, "temporaries of a block's forward", (size[0], size[1], size[2], 0.0), 1, FORWARD_ONLY)
    if size[3]:
        yield _holding(ctx, "dequantised weight in forward", (0.0, 0.0, 0.0, size[3]), 1, FORWARD_ONLY)
