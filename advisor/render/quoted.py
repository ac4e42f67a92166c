"""What the error itself printed, beside what the estimate explains of it: a quoted figure and an estimated one, never mixed in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.evidence import Failure
from advisor.ledger import Ledger, Peak
from advisor.render.words import moment as moment_of
from advisor.units import show

CLOSE = 0.1  # a difference that the estimate's own error covers: the median error is a few percent, nine in ten within a quarter


# A step's frames do not tell these apart: the loss is computed in the model's forward, and its gradients are the first of the backward pass.
_BESIDE = {"forward": ("forward", "loss"), "loss": ("forward", "loss", "backward"), "backward": ("loss", "backward")}


def _at(ledger: Ledger, phase: str | None) -> Peak:
    """The largest moment of the phase in which it failed; of all where the text does not settle it, or the estimate has no such phase."""
    there = tuple(p for p in _BESIDE.get(phase or "", (phase,)) if p in ledger.phases())
    found = ledger.peak(there) if there else ledger.peak()
    return found if found.bytes else ledger.peak()


def quoted(failure: Failure | None, ledger: Ledger | None) -> str | None:
    """One or two sentences; ``None`` where the error printed neither allocated bytes nor what a program was planned with."""
    if failure is None:
        return None
    if failure.allocated_bytes is None:
        return _planned(dict(failure.details))
    asked, capacity = failure.requested_bytes, failure.capacity_bytes
    needed = failure.allocated_bytes + (asked or 0)
    of = f" of {show(capacity)}" if capacity is not None else ""
    more = f" and asked for {show(asked)} more" if asked else ""
    said = f"PyTorch had allocated {show(failure.allocated_bytes)}{of}{more}."
    if ledger is None or not ledger.peak().bytes:
        return said
    peak = _at(ledger, failure.phase)
    explained, moment = peak.bytes, moment_of(peak.phase) if failure.phase is not None else "at the peak"
    gap = needed - explained
    if abs(gap) <= CLOSE * needed:
        return f"{said} The estimate explains it: {show(explained)} allocated {moment}."
    if gap > 0:
        return f"{said} The estimate explains {show(explained)} {moment} of these {show(needed)}; {show(gap)} are not explained by what is known so far."
    return (
        f"{said} That makes {show(needed)}. The estimate has {show(explained)} {moment}, {show(-gap)} above it: "
        "had this request been granted, a later one would have failed, or the run holds less than was assumed."
    )


def _planned(told: Mapping[str, Any]) -> str | None:
    """What XLA planned its program with: arguments (parameters and optimizer state among them) and temporaries; and its largest buffer."""
    total = told.get("program_total_bytes")
    if total is None:
        return None
    names = (("program_parameter_bytes", "of arguments"), ("program_preallocated_temp_bytes", "of temporaries"))  # results may lie where donated arguments lay
    parts = [f"{show(told[key])} {name}" for key, name in names if told.get(key)]
    said = f"XLA planned the program with {show(total)}" + (f", among them {' and '.join(parts)}." if parts else ".")
    buffers = told.get("peak_buffers") or ()
    return f"{said} Its largest buffer is {show(buffers[0][0])}, of {buffers[0][1]}." if buffers else said
