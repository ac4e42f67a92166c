"""Which cards hold a run, and the smallest that do."""

from __future__ import annotations

from advisor.cards import Card, catalogue
from advisor.planner.measuring import Bench, Candidate
from advisor.run import Run

MOST_DOUBLINGS = 6


def on_card(run: Run, card: Card) -> Run:
    """The run on another card, as many of them."""
    return run.but(hardware={"gpu": card.id, "cards": None})


def larger_cards(run: Run, capacity: int | None) -> list[Card]:
    """Server cards of the same maker with more memory, smallest first."""
    now = run.card.usable()[0] if run.card is not None else (capacity or 0)
    vendor = run.card.vendor.lower() if run.card is not None else "nvidia"
    found = [c for c in catalogue().values() if c.vendor.lower() == vendor and c.usable()[0] > now]
    found = [c for c in found if not c.consumer or (run.card is not None and run.card.consumer)]
    distinct: dict[int, Card] = {}
    for card in sorted(found, key=lambda c: (c.usable()[0], -(c.flops.get("bf16") or 0))):
        distinct.setdefault(round(card.marketed_gb), card)
    return list(distinct.values())


def smallest_that_fits(bench: Bench, least: Candidate) -> Candidate | None:
    """More of the same card where something is divided, else the smallest larger card."""
    if bench.constraints.keep_hardware:
        return None
    for times in range(1, MOST_DOUBLINGS + 1):
        more = bench.measure((*least.changes, ("more-gpus", times)))
        if more is None or more.used_bytes >= least.used_bytes:
            break
        if bench.fits(more, tightly=bench.margin_bytes is None):
            return more
    for times in range(1, 8):
        larger = bench.measure((*least.changes, ("larger-gpu", times)))
        if larger is None:
            return None
        if bench.fits(larger, tightly=bench.margin_bytes is None):
            return larger
    return None
