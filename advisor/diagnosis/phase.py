"""The phase of a report: what the failure's text settles, else what the numbers or the cause imply."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.ledger import Ledger
from advisor.report import Finding
from advisor.rules import counters, residual
from advisor.rules.engine import all_rules
from advisor.rules.estimating import ledger_of
from advisor.run import Run

ORDER = ("load", "forward", "loss", "backward", "step")
AT_LOAD = frozenset({"sharding-inactive-at-load", "moved-before-sharding", "quantized-load-not-sharded", "quantization-not-applied", "kbit-upcast", "weights"})


def phase_of(evidence: Evidence, run: Run, top: Finding | None) -> str:
    """A phase of the ledger, or ``unknown``; ``run``: the run as it really is.

    Without frames a failure lies in the first phase whose estimated peak reaches what was needed; a cause that acts in one phase only
    says it too.
    """
    ledger = ledger_of(run)
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
    if wanted is not None:
        reached = [p for p in ORDER if _at(p, ledger, run) >= wanted * (1 - residual.RELATIVE_ERROR)]
        if reached:
            return "forward" if reached[0] == "loss" else reached[0]
    if top is not None and top.tier == "batch":
        return "forward"
    return "unknown"


def _at(phase: str, ledger: Ledger | None, run: Run) -> int:
    """Estimated bytes of a phase. Loading depends on neither batch nor length, so it is known where these are not."""
    if ledger is None and phase == "load":
        ledger = ledger_of(run.but(batch={"micro_batch": 1, "seq_len": 1}))
    return ledger.at(phase) if ledger is not None else 0
