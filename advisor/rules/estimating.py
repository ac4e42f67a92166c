"""Estimates for hypotheses: a ledger for a run, or ``None`` with the reason, each made once a run."""

from __future__ import annotations

from advisor.ledger import Ledger
from advisor.run import Run


def ledger_of(run: Run) -> Ledger | None:
    """The estimate of a run; ``None`` where a deciding fact is missing (:func:`why_not` says which)."""
    if "ledger" not in run._cache:
        from advisor.arithmetic import CannotEstimate, estimate

        try:
            run._cache["ledger"] = estimate(run)
        except CannotEstimate as error:
            run._cache["ledger"], run._cache["why-no-ledger"] = None, str(error)
    found: Ledger | None = run._cache["ledger"]
    return found


def why_not(run: Run) -> str | None:
    """Why a run cannot be estimated; ``None`` where it can."""
    ledger_of(run)
    reason: str | None = run._cache.get("why-no-ledger")
    return reason
