"""Placeholder until this part is counted."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic.context import Context
from advisor.ledger import Holding


def holdings(ctx: Context) -> Iterator[Holding]:
    """Nothing yet."""
    return iter(())
