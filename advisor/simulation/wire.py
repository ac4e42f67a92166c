"""A ledger as plain data and back: what the probe's child process answers with, and what is remembered of it."""

from __future__ import annotations

from typing import Any

from advisor.ledger import Holding, Ledger, Moment


def to_dict(ledger: Ledger) -> dict[str, Any]:
    """A ledger as plain data, moments included."""
    return {
        "kind": ledger.kind, "rank": ledger.rank, "software": dict(ledger.software), "notes": list(ledger.notes),
        "moments": [[m.id, m.phase] for m in ledger.moments], "holdings": [{**h.to_json(), "moments": sorted(h.moments)} for h in ledger.holdings],
    }  # fmt: skip


def from_dict(data: dict[str, Any]) -> Ledger:
    """The ledger of :func:`to_dict`."""
    holdings = tuple(Holding(**{**h, "moments": frozenset(h["moments"])}) for h in data["holdings"])
    moments = tuple(Moment(*m) for m in data["moments"])
    return Ledger(data["kind"], holdings, moments, rank=data["rank"], software=data["software"], notes=tuple(data["notes"]))
