"""Before the run: which cards hold it, how many hours and how much money it takes there, and what host and disk must have.

For each card and number of cards of one node the lightest form that fits is taken: as written, divided, checkpointed, with a smaller micro
batch. Samples a step over all ranks stay. Every form is re-estimated; nothing is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from advisor.arithmetic import CannotEstimate, estimate
from advisor.arithmetic.interval import errors, kinds
from advisor.cards import Card, catalogue
from advisor.job import JobError
from advisor.ledger import Ledger
from advisor.planner.constraints import Constraints
from advisor.planner.storage import Storage, storage
from advisor.report import Verdict
from advisor.run import Run
from advisor.speed import step_time
from advisor.techniques import NotApplicable, all_techniques
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
    found: list[Offer] = []
    for card in _cards(run, cards if cards is not None else tuple(prices) if prices else None):
        for count in counts:
            offer = _offer(run, card, count, tokens, (prices or {}).get(card.id), most_hours, budget, allow or Constraints(), margin_bytes or 0)
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
    card: Card,
    count: int,
    tokens: int | None,
    price: float | None,
    most_hours: float | None,
    budget: float | None,
    allow: Constraints,
    margin: int,
) -> Offer | None:
    usable = card.usable()[0]
    best: tuple[int, tuple[str, ...], Run, Ledger] | None = None
    for changes, tried in _forms(run, card, count, allow):
        try:
            ledger = estimate(tried)
        except CannotEstimate:
            return None
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        if best is None or used < best[0]:
            best = (used, changes, tried, ledger)
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
    """:func:`judge`'s word, without a range where the expected figures and the estimator's own error decide: what is assumed can only widen them.

    Below the card's edge the allocator's cache gives way, and the range of what is allocated decides; at the edge that of the whole does.
    """
    expected, usable = ledger.expected_totals(), run.usable
    if not run.missing and ledger.holdings and usable is not None and (used := expected["device_used"].expected) <= usable[0]:
        total, beside = ("max_allocated", ledger.outside("context")) if used < usable[0] else ("device_used", 0)
        if round(expected[total].expected * errors(total, kinds(run))[1]) + beside > usable[0]:
            return "tight"
    return judge(run, ledger)[0]


def _samples(run: Run) -> int:
    """Samples of a step over all ranks."""
    b, p = run.job.batch, run.job.parallel
    return (b.micro_batch or 1) * (b.gradient_accumulation or 1) * max(1, (p.shard or 1) * (p.replicate or 1) // (p.context or 1))


def _batch(written: Run, chosen: Run, count: int) -> str | None:
    """How the batch was cut to so many cards, in words; ``None`` where the micro batch and the samples of a step are as written."""
    was, now = written.job.batch.micro_batch or 1, chosen.job.batch.micro_batch or 1
    before_, after = _samples(written), now * (chosen.job.batch.gradient_accumulation or 1) * count
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


def _forms(run: Run, card: Card, count: int, allow: Constraints) -> Iterator[tuple[tuple[str, ...], Run]]:
    """The job on so many cards, each form smaller than the one before: whole, divided, checkpointed, with a smaller micro batch."""
    base = _on(run, card, count)
    if base is None:
        return
    changes: tuple[str, ...] = ()
    yield changes, base
    wanted = [*(("fsdp", "zero-3") if count > 1 else ()), "gradient-checkpointing", *["smaller-micro-batch"] * 6]
    for name in wanted:
        if name == "zero-3" and "fsdp" in changes:
            continue
        if not allow.permits(all_techniques()[name]) or (name not in changes and not allow.within(len(changes) + 1)):
            continue
        try:
            after = all_techniques()[name].apply(base)
        except JobError:
            continue
        if not isinstance(after, NotApplicable):
            base, changes = after, (changes if name in changes else (*changes, name))
            yield changes, base


def _on(run: Run, card: Card, count: int) -> Run | None:
    """The job on one node of so many cards, its samples a step kept as nearly as whole numbers allow."""
    b, p = run.job.batch, run.job.parallel
    micro = b.micro_batch or 1
    samples = _samples(run)
    micro = min(micro, max(1, samples // count))
    strategy = p.strategy if p.strategy in ("zero1", "zero2", "zero3", "fsdp1", "fsdp2") else "ddp"
    group = {"shard": 1, "replicate": count} if strategy == "ddp" else {"shard": count, "replicate": 1}
    parallel = {"strategy": "none" if count == 1 else strategy, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, **group}
    try:
        return run.but(
            hardware={"gpu": card.id, "gpus_per_node": count, "nodes": 1, "cards": None},
            parallel=parallel,
            batch={"micro_batch": micro, "gradient_accumulation": max(1, samples // (micro * count))},
        )
    except JobError:
        return None
