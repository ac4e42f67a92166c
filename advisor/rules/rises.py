"""Rises between two printed figures before the first step, compared with what a hypothesis would add.

Scripts print what is allocated after each stage of preparation (loaded, prepared, wrapped). What a stage adds is then known to the last
printed digit, and a widened table or one more copy has a size of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from advisor.evidence import Evidence, Sample
from advisor.units import MIB, show

CLOSE = 0.03  # of what is expected: small tensors that the stage makes besides
LEAST = 96 * MIB  # below this a rise is a workspace or a context
DIGITS = 8 * MIB  # rounding of two figures in MB, or in GB with two decimals


class Rise(Struct, frozen=True):
    """What was added between two figures, bytes, and where they stand."""

    bytes: int
    before: Sample
    after: Sample

    @property
    def says(self) -> str:
        """The rise in words."""
        return f"the figure in {self.after.where} is {show(self.bytes)} above that in {self.before.where}"


def rises(evidence: Evidence) -> Iterator[Rise]:
    """Rises between neighbouring figures of one rank that are not of steps."""
    figures = [s for s in evidence.samples if s.allocated_bytes is not None and s.step is None]
    for before, after in pairwise(figures):
        added = (after.allocated_bytes or 0) - (before.allocated_bytes or 0)
        if before.rank == after.rank and before.label != after.label and added >= LEAST:
            yield Rise(added, before, after)


def matching(evidence: Evidence, expected: int, what: str) -> str | None:
    """The sentence where a rise has this size; ``what`` names the addition ("embedding and head in fp32 instead of 16 bit")."""
    if expected < LEAST:
        return None
    for rise in rises(evidence):
        if abs(rise.bytes - expected) <= max(CLOSE * expected, DIGITS):
            return f"{rise.says}; {what} adds {show(expected)}"
    return None
