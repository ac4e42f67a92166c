"""Before the run: which cards hold it, how many hours and how much money it takes there, and what host and disk must have.

For each card and number of cards of one node the lightest form that fits is taken: as written, divided, checkpointed, with a smaller micro
batch. Samples a step over all ranks stay. Every form is re-estimated; nothing is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from advisor.arithmetic import estimate
from advisor.arithmetic.interval import errors, kinds
from advisor.cards import Card, catalogue
from advisor.ledger import Ledger
from advisor.planner.constraints import Constraints
from advisor.planner.forms import Forms, alike, samples
from advisor.planner.storage import Storage, storage
from advisor.report import Verdict
from advisor.run import Run
from advisor.speed import step_time
from advisor.verdict import judge

COUNTS = (1, 2, 4, 8)


class Range(Struct, frozen=True):
    """A figure with its range: hours, or money in the unit of the prices."""

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> Range:
        """All three, scaled."""
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def to_json(self) -> dict[str, float]:
        """Rounded to hundredths."""
        return {"low": round(self.low, 2), "expected": round(self.expected, 2), "high": round(self.high, 2)}


class Offer(Struct, frozen=True):
    """A number of cards. ``changes``: what was applied so that it fits, against the job as written; ``hours`` None: tokens or the card's rates are unknown."""

    card: str
    cards: int
    verdict: Verdict
    used_bytes: int
    usable_bytes: int
    changes: tuple[str, ...]
    hours: Range | None
    cost: Range | None
    storage: Storage
    run: Run
    within: bool | None = None  # of the time and money that the user has; None: neither was said
    batch: str | None = None  # how a step's batch differs from the job as written; None: it does not

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        from advisor.units import gib

        return {
            "card": self.card, "cards": self.cards, "verdict": self.verdict, "used_gib": gib(self.used_bytes), "usable_gib": gib(self.usable_bytes),
            "changes": list(self.changes), "hours": self.hours.to_json() if self.hours else None, "cost": self.cost.to_json() if self.cost else None,
            "host_gib": gib(self.storage.host_bytes), "checkpoint_gib": gib(self.storage.checkpoint_bytes), "weights_gib": gib(self.storage.weights_bytes),
            "within": self.within, "micro_batch": self.run.job.batch.micro_batch, "gradient_accumulation": self.run.job.batch.gradient_accumulation,
            "batch": self.batch,
        }  # fmt: skip


def before(
    run: Run,
    *,
    total_tokens: int | None = None,
    cards: Sequence[str] | None = None,
    counts: Sequence[int] = COUNTS,
    prices: Mapping[str, float] | None = None,
    most_hours: float | None = None,
    budget: float | None = None,
    allow: Constraints | None = None,
    margin_bytes: int | None = None,
) -> list[Offer]:
    """What each card and number of cards would take, the best first: what surely fits, by cost where prices are given, else by card-hours.

    Args:
        run: of any card: its hardware is replaced.
        total_tokens: of the whole run; ``None``: the job's ``batch.total_tokens``. Without either there are no hours.
        cards: ids of the catalogue; ``None``: those of the prices, else every card that computes in the job's dtype.
        prices: of one card for an hour, by card id, in any one currency.
        most_hours, budget: what the user has; judged by the high end of the range.
        allow: what may be changed so that it fits; nothing that is learned is changed anyhow, and the cards are what is asked.
        margin_bytes: to stay free on each card; what leaves less is ``tight``.
    """
    tokens = total_tokens or run.job.batch.total_tokens
    wanted = _cards(run, cards if cards is not None else tuple(prices) if prices else None)
    shared: dict[tuple[Any, ...], list[Card]] = {}
    for card in wanted:
        shared.setdefault(alike(run, card), []).append(card)
    forms = {(kind, count): Forms(run, group, count, allow or Constraints()) for kind, group in shared.items() for count in counts}
    found: list[Offer] = []
    for card in wanted:
        for count in counts:
            offer = _offer(run, forms[alike(run, card), count], card, count, tokens, (prices or {}).get(card.id), most_hours, budget, margin_bytes or 0)
            if offer is not None:
                found.append(offer)
    return sorted(found, key=_rank)


def _rank(offer: Offer) -> tuple[bool, bool, bool, bool, float, int, int]:
    """Money and card-hours are never compared: what has a price stands before what has none. Without either, fewer and then smaller cards."""
    if offer.cost is not None:
        paid = offer.cost.expected
    else:
        paid = offer.hours.expected * offer.cards if offer.hours is not None else math.inf
    return (offer.verdict == "ooms", offer.within is False, offer.verdict != "fits", offer.cost is None, paid, offer.cards, offer.usable_bytes)


def recommended(offers: Sequence[Offer]) -> Offer | None:
    """The best of offers in :func:`before`'s order; ``None`` where none fits within the limits that were given."""
    return next((o for o in offers if o.verdict != "ooms" and o.within is not False), None)


def _cards(run: Run, wanted: Sequence[str] | None) -> list[Card]:
    if wanted is not None:
        unknown = [name for name in wanted if name not in catalogue()]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no card of the catalogue; `advisor cards` lists their ids")
        return [catalogue()[name] for name in wanted]
    compute = run.job.precision.compute or "bf16"
    return [c for c in catalogue().values() if c.vendor.lower() == "nvidia" and c.flops.get("bf16" if compute == "fp32" else compute)]


def _offer(
    run: Run,
    forms: Forms,
    card: Card,
    count: int,
    tokens: int | None,
    price: float | None,
    most_hours: float | None,
    budget: float | None,
    margin: int,
) -> Offer | None:
    usable = card.usable()[0]
    best: tuple[int, tuple[str, ...], Run, Ledger] | None = None
    for form in forms:
        tried, ledger = form.on(card), form.ledger
        if ledger is None:
            return None
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        if best is None or used < best[0]:
            best = (used, form.changes, tried, ledger)
        if used + margin <= usable and _verdict(tried, ledger) == "fits":
            break
    if best is None:
        return None
    used, changes, chosen, ledger = best
    # beyond the card without the allocator's cache it does not fit, whatever the range: that need not be worked out
    verdict: Verdict = "ooms" if used > usable and not chosen.missing else _verdict(chosen, ledger)
    verdict = "tight" if verdict == "fits" and used + margin > usable else verdict
    hours = _hours(chosen, tokens) if verdict != "ooms" else None
    cost = hours.times(price * count) if hours is not None and price is not None else None
    within = None
    if most_hours is not None or budget is not None:
        in_time = most_hours is None or (hours is not None and hours.high <= most_hours)
        within = in_time and (budget is None or (cost is not None and cost.high <= budget))
    return Offer(card.id, count, verdict, used, usable, changes, hours, cost, storage(chosen, ledger), chosen, within, _batch(run, chosen, count))


def _verdict(run: Run, ledger: Ledger) -> Verdict:
    """:func:`judge`'s word, with no more of the range than decides. ``ledger``: the run's, or that of the same run on a larger card.

    Below the card's edge the allocator's cache gives way, and the range of what is allocated decides; at the edge that of the whole does, which the
    estimator's own error mostly settles: what is assumed can only widen it.
    """
    usable = run.usable
    if run.missing or not ledger.holdings or usable is None:
        return judge(run, ledger)[0]
    context = ledger.outside("context")
    needed = ledger.expected_totals()["max_allocated"].expected + context
    used = needed + max(0, min(ledger.outside("allocator"), usable[0] - needed))
    if used < usable[0]:
        return "tight" if ledger.may_allocate(usable[0] - context) else "fits"
    if used == usable[0] and round(used * errors("device_used", kinds(run))[1]) > usable[0]:
        return "tight"
    return judge(run, estimate(run))[0]


def _batch(written: Run, chosen: Run, count: int) -> str | None:
    """How the batch was cut to so many cards, in words; ``None`` where the micro batch and the samples of a step are as written."""
    was, now = written.job.batch.micro_batch or 1, chosen.job.batch.micro_batch or 1
    before_, after = samples(written), now * (chosen.job.batch.gradient_accumulation or 1) * count
    said = [f"micro batch {now} on each card in place of {was}"] if now != was else []
    said += [f"{after} samples a step in place of {before_}"] if after != before_ else ["a step keeps its samples"] if said else []
    return ", ".join(said) or None


def _hours(run: Run, tokens: int | None) -> Range | None:
    if tokens is None:
        return None
    time = step_time(run)
    if time.relative or time.tokens <= 0:
        return None
    return Range(time.low, time.expected, time.high).times(tokens / time.tokens / 3600)
