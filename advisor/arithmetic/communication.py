"""Buffers of collectives: gathered parameters, reduce buckets."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic.context import Context
from advisor.ledger import Holding


def holdings(ctx: Context) -> Iterator[Holding]:
    """What gathering and reducing hold beside the shards."""
    return iter(())
