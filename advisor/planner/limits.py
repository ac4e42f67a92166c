"""Solved numbers: the largest micro batch, the longest sequence, and which cards of the catalogue hold a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from advisor.arithmetic import CannotEstimate, estimate
from advisor.cards import catalogue
from advisor.job import JobError
from advisor.planner.hardware import on_card
from advisor.run import Run

MOST_SEQUENCES = 1 << 14
MOST_TOKENS = 1 << 24
TOKEN_STEP = 128  # sequence lengths are solved to a multiple of it: kernels pad to that anyway
CardVerdict = Literal["fits", "tight", "ooms", "unknown"]


def _needs(run: Run) -> int:
    """Bytes of the card without the allocator's cache, expected."""
    ledger = estimate(run)
    return ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` for which ``fits`` holds, by doubling and halving; 0 where one does not."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def max_micro_batch(run: Run, capacity_bytes: int) -> int | None:
    """The largest micro batch whose expected need is within ``capacity_bytes``; 0 where one sequence is too much, ``None``: no estimate."""
    try:
        return _largest(lambda n: _needs(run.but(batch={"micro_batch": n})) <= capacity_bytes, MOST_SEQUENCES)
    except CannotEstimate:
        return None


def max_seq_len(run: Run, capacity_bytes: int) -> int | None:
    """The longest sequence (tokens, a multiple of :data:`TOKEN_STEP`) whose expected need is within ``capacity_bytes``.

    The model's own limit of positions is not applied here: a longer one needs a scaled position encoding.
    """

    def fits(steps: int) -> bool:
        tokens = steps * TOKEN_STEP
        budget = run.job.batch.token_budget
        change = {"seq_len": tokens, "lengths": None, **({"token_budget": max(budget, tokens)} if budget is not None else {})}
        return _needs(run.but(batch=change)) <= capacity_bytes

    try:
        return _largest(fits, MOST_TOKENS // TOKEN_STEP) * TOKEN_STEP
    except CannotEstimate:
        return None


def which_cards(run: Run) -> list[tuple[str, CardVerdict, int]]:
    """``(card, verdict, bytes)`` for every card of the catalogue, smallest first, for as many cards as the run uses.

    Expected need against the card's usable bytes; within 5 % of it is ``tight``. The estimate is anew for each card, because context and
    workspaces differ.
    """
    found: list[tuple[str, CardVerdict, int]] = []
    for card in sorted(catalogue().values(), key=lambda c: (c.usable()[0], c.id)):
        try:
            moved = on_card(run, card)
            need = _needs(moved)
        except (CannotEstimate, JobError):
            found.append((card.id, "unknown", 0))
            continue
        usable = card.usable()[0]
        found.append((card.id, "ooms" if need > usable else "tight" if need > 0.95 * usable else "fits", need))
    return found
