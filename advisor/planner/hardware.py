"""Which cards hold a run, and the smallest that do."""

from __future__ import annotations

from advisor.cards import Card
from advisor.planner.measuring import Bench, Candidate
from advisor.run import Run

MOST_DOUBLINGS = 6
MOST_SIZES = 40  # cards of the catalogue, each larger than the one before
ALREADY_TOO_SMALL = 0.9


def on_card(run: Run, card: Card) -> Run:
    """The run on another card, as many of them."""
    return run.but(hardware={"gpu": card.id, "cards": None})


def smallest_that_fits(bench: Bench, least: Candidate) -> Candidate | None:
    """More of the same card where something is divided, else the smallest larger card."""
    if bench.constraints.keep_hardware or not bench.constraints.within(len(least.changes) + 1):
        return None
    for times in range(1, MOST_DOUBLINGS + 1):
        more = bench.measure((*least.changes, ("more-gpus", times)))
        if more is None or more.used_bytes >= least.used_bytes:
            break
        if bench.fits(more, tightly=bench.margin_bytes is None):
            return more
    for times in range(1, MOST_SIZES):
        usable = bench.usable((*least.changes, ("larger-gpu", times)))
        if usable is None:
            return None
        if usable < ALREADY_TOO_SMALL * least.used_bytes:
            continue  # context and workspaces differ a little between cards, not so much
        larger = bench.measure((*least.changes, ("larger-gpu", times)))
        if larger is not None and bench.fits(larger, tightly=bench.margin_bytes is None):
            return larger
    return None
