"""Solved numbers: the largest micro batch, the longest sequence, and which cards of the catalogue hold a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from advisor.architecture import ConfigError
from advisor.arithmetic import CannotEstimate, estimate
from advisor.cards import catalogue
from advisor.job import JobError
from advisor.planner.hardware import on_card
from advisor.run import Run

MOST_SEQUENCES = 1 << 14
LEAST_BYTES = 0.5  # of a parameter, in any layout (4 bits)
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


def max_model(run: Run, capacity_bytes: int) -> tuple[str, int] | None:
    """``(hub id, parameters)`` of the largest known causal language model that this job's settings hold within ``capacity_bytes``.

    Micro batch, sequence and method stay; what the model itself decides (attention, vocabulary, experts) is its own. ``None``: no known model fits.
    """
    from advisor.architecture.presets import find, index

    known = {preset.hub_id: preset for name in index() if (preset := find(name)) is not None}
    for preset in sorted(known.values(), key=lambda x: -x.parameters):
        if preset.parameters * LEAST_BYTES > capacity_bytes * max(1, run.world) or preset.config.get("is_encoder_decoder"):
            continue
        try:
            if _needs(run.but(model={"name": preset.hub_id, "config": None, "vision": None})) <= capacity_bytes:
                return preset.hub_id, preset.parameters
        except (CannotEstimate, JobError, ConfigError):
            continue
    return None


class Limits(Struct, frozen=True):
    """What one card holds with everything else as it is; ``None``: it could not be solved."""

    capacity_bytes: int
    micro_batch: int | None
    seq_len: int | None
    model: tuple[str, int] | None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        model = None if self.model is None else {"name": self.model[0], "parameters": self.model[1]}
        return {"capacity": self.capacity_bytes, "max_micro_batch": self.micro_batch, "max_seq_len": self.seq_len, "max_model": model}


def limits(run: Run, capacity_bytes: int | None = None) -> Limits | None:
    """The largest micro batch, the longest sequence and the largest known model; ``None`` where the card is not known."""
    capacity = capacity_bytes if capacity_bytes is not None else run.usable[0] if run.usable is not None else None
    if capacity is None:
        return None
    return Limits(capacity, max_micro_batch(run, capacity), max_seq_len(run, capacity), max_model(run, capacity))


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
