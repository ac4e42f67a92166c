"""Counters that no device can have: such a text is shown as not understood, and nothing is concluded from it."""

from __future__ import annotations

from advisor.evidence import Failure
from advisor.units import GIB, TIB, show

SPILLED = 16.0  # times the card that a driver can lend from the host's memory (Windows, WSL, managed memory): more than any host has beside a card


def implausible(failure: Failure) -> str | None:
    """Why a failure's counters cannot be; ``None`` where they can."""
    capacity = failure.capacity_bytes
    if capacity is not None and not 256 * 2**20 <= capacity <= 2 * TIB:
        return f"a card with a total capacity of {show(capacity)} does not exist"
    for name, value, times in (("free", failure.free_bytes, 1.1), ("allocated", failure.allocated_bytes, SPILLED)):
        if capacity is not None and value is not None and value > times * capacity + GIB and failure.backend not in ("mps", "jax"):
            return f"{show(value)} {name} is more than the total capacity of {show(capacity)}"
    return None
