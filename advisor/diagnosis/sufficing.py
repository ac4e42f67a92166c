"""A cause whose cure can not matter for what is missing does not lead where another's cure alone suffices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from advisor.report import Finding, Says
from advisor.rules.estimating import ledger_of
from advisor.run import Run
from advisor.units import show

NOTHING = 0.05  # of what is over the card: a cure that saves less decides nothing
AGAINST = -1.5  # log-likelihood ratio: seldom is a cause found whose cure leaves the estimate where it is
MARK = "diagnosis-cure-saves-nothing"


def weighed(findings: Sequence[Finding], real: Run, capacity: int | None) -> tuple[Finding, ...]:
    """The findings with those weighed less whose cure saves next to nothing of what the estimate has over the card.

    Only where another one's cure alone covers it, and only for savings that are known: one without an estimate is not a small one.
    """
    ledger = ledger_of(real)
    over = ledger.peak().bytes - capacity if ledger is not None and capacity is not None else 0
    if over <= 0 or not any(f.saves_bytes is not None and f.saves_bytes >= over for f in findings):
        return tuple(findings)
    total = sum(f.confidence for f in findings)
    changed = [_less(f, over) if f.saves_bytes is not None and f.saves_bytes < NOTHING * over else f for f in findings]
    left = sum(f.confidence for f in changed)
    scale = 1 / (left + 1 - total) if left + 1 - total > 0 else 1.0  # "none of these" keeps its odds against the others
    return tuple(sorted((replace(f, confidence=min(1.0, f.confidence * scale)) for f in changed), key=lambda f: -f.confidence))


def _less(finding: Finding, over: int) -> Finding:
    sentence = f"its cure saves {show(max(0, finding.saves_bytes or 0))} of the {show(over)} that the estimate has over the card, and another's covers it"
    says = Says(sentence, None, False, AGAINST, MARK, "the estimate's ledger before and after each cure")
    return replace(finding, confidence=finding.confidence * math.exp(AGAINST), evidence=(*finding.evidence, says))
