"""What growth says of causes that do not grow: where what was kept of each step is more than what is missing, the part of one step is not why it ended."""

from __future__ import annotations

import math

from advisor.evidence import Evidence
from advisor.report import Says
from advisor.rules import growth
from advisor.rules.observing import BY_ESTIMATE, RESIDENT, WITH_BATCH

_SOURCE = "memory at one point of the step, printed over the steps: a cause that is the same in every step leaves it where it was"
_WEIGHT = math.log((1 - BY_ESTIMATE) / BY_ESTIMATE)  # printed counters can be of another point than they seem, as an estimate can err


def against(cause: str, evidence: Evidence) -> tuple[Says, ...]:
    """The objection to a cause that is the same in every step, where growth has filled the card."""
    if cause not in WITH_BATCH | RESIDENT or (kept := growth.fills(evidence)) is None:
        return ()
    return (Says(f"it would be there from the first step: {kept}", None, False, _WEIGHT, f"{cause}-not-kept", _SOURCE),)
