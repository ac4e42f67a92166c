"""Counters that no device can have: such a text is shown as not understood, and nothing is concluded from it."""

from __future__ import annotations

from advisor.evidence import Failure
from advisor.units import GIB, TIB, show


def implausible(failure: Failure) -> str | None:
    """Why a failure's counters cannot be; ``None`` where they can."""
    capacity = failure.capacity_bytes
    if capacity is not None and not 256 * 2**20 <= capacity <= 2 * TIB:
        return f"a card with a total capacity of {show(capacity)} does not exist"
    for name, value in (("free", failure.free_bytes), ("allocated", failure.allocated_bytes)):
        if capacity is not None and value is not None and value > 1.1 * capacity + GIB and failure.backend not in ("mps", "jax"):
            return f"{show(value)} {name} is more than the total capacity of {show(capacity)}"
    return None
