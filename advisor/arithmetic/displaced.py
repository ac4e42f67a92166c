"""Blocks of the loss that activations split for good, because optimizer states have taken the activations' own."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.arithmetic import logits
from advisor.arithmetic.context import Context
from advisor.ledger import Holding


def displaced(ctx: Context, held: Sequence[Holding]) -> int:
    """Bytes that stay reserved beyond the peak where blocks keep all activations and every block of the loss is of one size.

    The first step ends with the states' birth, in free blocks of activations. What they take is missing at the second forward pass, whose
    activations then come from the loss's blocks, the only free ones that are large enough: as many of these as the states fill are split for
    good, and the loss asks for new ones. Together: activations without states, the loss's blocks, and those new ones. Replays of the
    arithmetic's tape (tests/arithmetic/replay.py) reserve as much within 0.15 GiB; where narrow and wide logits mix, halves of both bounds are
    nearer (cached_blocks.py).
    """
    if ctx.checkpointing != "none" or ctx.strategy not in ("none", "ddp") or not ctx.has_head or ctx.arch.classes is not None:
        return 0
    form = logits.form_of(ctx)
    if form in ("fused-linear", "chunked"):
        return 0
    loss = logits.of(ctx, form)
    block = round(loss.wide * ctx.tokens * logits.vocabulary(ctx))
    if loss.narrow or loss.wide != logits.width(ctx) or not block:
        return 0
    states = sum(h.bytes for h in held if h.part == "optimizer" and h.device == "gpu" and "states" in h.name)
    return -(-states // block) * block - states
