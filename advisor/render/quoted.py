"""What the error itself printed, beside what the estimate explains of it: a quoted figure and an estimated one, never mixed in one."""

from __future__ import annotations

from advisor.evidence import Failure
from advisor.ledger import Ledger
from advisor.units import show

CLOSE = 0.1  # a difference that the estimate's own error covers: the median error is a few percent, nine in ten within a quarter


def quoted(failure: Failure | None, ledger: Ledger | None) -> str | None:
    """One or two sentences; ``None`` where the error printed no allocated bytes."""
    if failure is None or failure.allocated_bytes is None:
        return None
    asked, capacity = failure.requested_bytes, failure.capacity_bytes
    needed = failure.allocated_bytes + (asked or 0)
    of = f" of {show(capacity)}" if capacity is not None else ""
    more = f" and asked for {show(asked)} more" if asked else ""
    said = f"PyTorch had allocated {show(failure.allocated_bytes)}{of}{more}."
    if ledger is None or not ledger.peak().bytes:
        return said
    explained = ledger.peak().bytes
    gap = needed - explained
    if abs(gap) <= CLOSE * needed:
        return f"{said} The estimate explains it: {show(explained)} allocated at the peak."
    if gap > 0:
        return f"{said} The estimate explains {show(explained)} of these {show(needed)}; {show(gap)} are not explained by what is known so far."
    return (
        f"{said} That makes {show(needed)}. The estimate's peak is {show(explained)}, {show(-gap)} above it: "
        "had this request been granted, a later one would have failed, or the run holds less than was assumed."
    )
