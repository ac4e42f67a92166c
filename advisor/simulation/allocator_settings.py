"""What ``PYTORCH_ALLOC_CONF`` says, and the bytes that a request is served with under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.simulation.blocks import ROUND
from advisor.units import MIB

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Settings:
    """``PYTORCH_ALLOC_CONF``, in bytes."""

    expandable: bool = False
    max_split: int = UNLIMITED
    divisions: int = 0

    @classmethod
    def of(cls, written: Mapping[str, Any], **changes: Any) -> Settings:
        """From the job's ``framework.allocator``."""
        split, divisions = written.get("max_split_size_mb"), written.get("roundup_power2_divisions")
        found = {
            "expandable": bool(written.get("expandable_segments", False)),
            "max_split": int(split) * MIB if split else UNLIMITED,
            "divisions": int(divisions) if isinstance(divisions, (int, float)) else 0,
        }
        return cls(**{**found, **changes})

    def rounded(self, size: int) -> int:
        """A request as the allocator serves it."""
        if self.divisions > 1 and size > ROUND * self.divisions:
            power = 1 << (size.bit_length() - 1)
            step = power // self.divisions
            return power if size == power else power + -(-(size - power) // step) * step
        return -(-size // ROUND) * ROUND or ROUND
