"""How well a run's ledger explains the counters of a failure.

A run that fails in a phase passes through every level up to that phase's peak, so what counts is whether the needed bytes
(allocated plus the request) lie between the phase's floor (what must be resident when it starts) and its peak, and whether the
phases before it would have fitted. Outside that range the log-likelihood falls off with the square of the distance, measured in
the estimate's own error.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.ledger import Ledger
from advisor.rules.counters import Counters
from advisor.units import GIB, show

RELATIVE_ERROR = 0.10  # an estimate's typical error (median of the public measurements), where the ledger gives no range
LEAST_ERROR = round(0.4 * GIB)  # workspaces, rounding to segments, small buffers
WORST = -4.0  # a text can be misread and a fact misstated: no single comparison decides alone

GROUPS = {
    "load": ("load",),
    "forward": ("forward", "loss"),
    "loss": ("forward", "loss"),
    "backward": ("loss", "backward"),
    "step": ("step",),
    "eval": ("eval",),
    "save": ("save",),
    "resume": ("resume",),
    "merge": ("merge",),
    "rollout": ("rollout",),
    "sync": ("sync",),
}
BEFORE = {"forward": ("load",), "loss": ("load",), "backward": ("load", "forward"), "step": ("load", "forward", "loss", "backward")}
RESIDENT = frozenset({"weights", "reference", "reward", "critic", "rollout-weights"})  # there from the first forward pass on


class Fit(Struct, frozen=True):
    """A log-likelihood (0: explained, negative: not), and the reason in words."""

    value: float
    says: str


UNKNOWN = Fit(0.0, "no counters to compare with")


def fit(ledger: Ledger | None, counters: Counters, phase: str | None, relative: float = RELATIVE_ERROR) -> Fit:
    """Compare a ledger with a failure's counters at its phase; ``relative``: the estimate's own error (:func:`relative_error`)."""
    wanted = counters.wanted
    if ledger is None or wanted is None:
        return UNKNOWN
    group = GROUPS.get(phase or "")
    present = {m.phase for m in ledger.moments}
    if group is not None and not present & set(group):
        return Fit(0.0, f"the estimate has no {phase} phase")
    peak = ledger.peak(group)
    error = max(round(relative * peak.bytes), LEAST_ERROR)
    floor = sum(h.bytes for h in peak.holdings if h.part in RESIDENT) if phase in ("forward", "loss", "backward", "step") else 0
    before = max((ledger.at(p) for p in BEFORE.get(phase or "", ())), default=0)
    if wanted > peak.bytes:
        return Fit(_fall(wanted - peak.bytes, error), f"needs {show(wanted)} where the estimate explains {show(peak.bytes)}")
    if floor > wanted:
        return Fit(_fall(floor - wanted, error), f"needs {show(wanted)} where {show(floor)} would be resident before this phase")
    if counters.capacity is not None and before > counters.capacity:
        return Fit(_fall(before - counters.capacity, error), f"an earlier phase would already have needed {show(before)}")
    return Fit(0.0, f"needs {show(wanted)}, within the {show(peak.bytes)} that the estimate explains")


def relative_error(ledger: Ledger | None) -> float:
    """One standard deviation of an estimate as a share of it: from its own range, at least the typical error."""
    interval = ledger.totals().get("max_allocated") if ledger is not None else None
    if interval is None or not interval.expected:
        return RELATIVE_ERROR
    return max(RELATIVE_ERROR, (interval.high - interval.low) / 3.3 / interval.expected)  # a range of about 90 %: 3.3 standard deviations


def _fall(distance: int, error: int) -> float:
    return max(WORST, -0.5 * (distance / error) ** 2)
