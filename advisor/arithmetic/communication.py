"""Buffers of collectives, by strategy."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.arithmetic import fsdp, zero
from advisor.arithmetic.context import Context
from advisor.ledger import Holding


def holdings(ctx: Context) -> Iterable[Holding]:
    """What gathering and reducing hold beside the shards (DDP's buckets are counted with the gradients they copy)."""
    if ctx.strategy in ("fsdp1", "fsdp2", "megatron-fsdp"):
        return fsdp.communication(ctx)
    if ctx.strategy in ("zero1", "zero2", "zero3"):
        return zero.communication(ctx)
    return ()
