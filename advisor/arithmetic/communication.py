"""Buffers of collectives, by strategy."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.arithmetic import fsdp1, fsdp2, fsdp_whole, zero
from advisor.arithmetic.context import FSDP, Context
from advisor.arithmetic.fsdp_units import never_gathered
from advisor.ledger import Holding


def holdings(ctx: Context) -> Iterable[Holding]:
    """What gathering and reducing hold beside the shards (DDP's buckets are counted with the gradients they copy)."""
    if ctx.strategy == "fsdp1" and never_gathered(ctx):
        return ()
    if ctx.strategy in FSDP and fsdp_whole.one_unit(ctx):
        return fsdp_whole.communication(ctx)
    if ctx.strategy == "fsdp1":
        return fsdp1.communication(ctx)
    if ctx.strategy in FSDP:
        return fsdp2.communication(ctx)
    if ctx.strategy in ("zero1", "zero2", "zero3"):
        return zero.communication(ctx)
    return ()
