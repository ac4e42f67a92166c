"""Two ledgers of one run at the same moment: a difference is then one of bytes, not of the time that was looked at."""

from __future__ import annotations

from advisor.ledger import Ledger, Peak


def same_moment(first: Ledger, second: Ledger) -> tuple[Peak, Peak]:
    """The largest moment of the first, and that very moment of the second.

    Where the second has no such moment, its largest of the same phase; where it has no such phase, its largest of all. The loss counts with
    forward and backward where the first has no loss of its own.
    """
    ours = first.peak()
    return ours, at_moment(second, ours.moment.id) or within(first, second, ours.phase) or second.peak()


def at_moment(ledger: Ledger, moment: str) -> Peak | None:
    """What a ledger holds at a moment; None where it has no such moment."""
    found = next((m for m in ledger.moments if m.id == moment), None)
    size = ledger.allocated_by_moment().get(moment, 0)
    return None if found is None or not size else Peak(found, size, ledger.alive(moment))


def within(first: Ledger, second: Ledger, phase: str) -> Peak | None:
    """The second's largest moment of a phase of the first; None where it has none."""
    found = second.peak(phases_as(first, phase))
    return found if found.bytes else None


def phases_as(ledger: Ledger, phase: str) -> tuple[str, ...]:
    """The phases of another ledger that this one counts in ``phase``: a ledger without a loss has its two halves in forward and backward."""
    return (phase, "loss") if phase in ("forward", "backward") and "loss" not in ledger.phases() else (phase,)


def moments_beside(first: Ledger, second: Ledger) -> dict[str, tuple[int, int]]:
    """Allocated bytes at each moment that both have, in the first's order."""
    ours, theirs = first.allocated_by_moment(), second.allocated_by_moment()
    return {moment: (size, theirs[moment]) for moment, size in ours.items() if size and theirs.get(moment)}


def parts_beside(first: Ledger, second: Ledger, moment: str) -> dict[str, tuple[int, int]]:
    """Bytes of each part that one of them has at a moment that both have; the differences add up to that of the two sums."""
    ours, theirs = first.by_part(moment), second.by_part(moment)
    return {part: (ours.get(part, 0), theirs.get(part, 0)) for part in {**ours, **theirs}}
