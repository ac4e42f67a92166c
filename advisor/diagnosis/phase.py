"""The phase of a report: what the failure's text settles, else what the numbers or the cause imply."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.ledger import Ledger
from advisor.report import Finding
from advisor.rules import counters, residual
from advisor.rules.engine import all_rules

ORDER = ("load", "forward", "loss", "backward", "step")
AT_LOAD = frozenset({"sharding-inactive-at-load", "moved-before-sharding", "quantized-load-not-sharded", "quantization-not-applied", "kbit-upcast", "weights"})


def phase_of(evidence: Evidence, ledger: Ledger | None, top: Finding | None) -> str:
    """A phase of the ledger, or ``unknown``.

    Without frames a failure lies in the first phase whose estimated peak reaches what was needed; a cause that acts in one phase only
    says it too.
    """
    failure = evidence.failure
    if failure is None:
        return ledger.peak().phase if ledger is not None else "unknown"
    if failure.phase is not None:
        return failure.phase
    if failure.kind not in ("gpu-memory", "gpu-driver"):
        return "unknown"
    if top is not None:
        explains = next((r.explains for r in all_rules() if r.id == top.cause), ())
        if len(explains) == 1:
            return explains[0]
        if top.cause in AT_LOAD and dict(failure.details).get("what") != "one sample":  # that was tried in training
            return "load"
    wanted = counters.of(evidence).wanted
    if ledger is not None and wanted is not None:
        reached = [p for p in ORDER if ledger.at(p) >= wanted * (1 - residual.RELATIVE_ERROR)]
        if reached:
            return "forward" if reached[0] == "loss" else reached[0]
    if top is not None and top.tier == "batch":
        return "forward"
    return "unknown"
