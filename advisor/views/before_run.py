"""Before the run: on which cards, and how many of them, a job fits, how long it takes and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor import cards
from advisor.arithmetic import CannotEstimate, estimate
from advisor.evidence import Evidence, Fact
from advisor.job import Job, JobError
from advisor.report import Verdict
from advisor.run import Run, resolve
from advisor.speed import training_seconds
from advisor.verdict import judge, needed

COUNTS = (1, 2, 4, 8, 16, 32, 64)
MICRO_BATCHES = (1, 2, 4, 8, 16)  # throughput hardly grows beyond: the products of a layer are large by then
PER_NODE = 8  # cards in a node: how the data-centre cards of the catalogue are commonly sold
MORE_THAN_ENOUGH = 3  # doublings of the smallest count that fits: more cards only shorten the time


@dataclass(frozen=True, slots=True)
class Option:
    """So many of one card: bytes needed on each, hours of the whole run with their range, and the price of them where it is known."""

    card: cards.Card
    count: int
    micro_batch: int
    verdict: Verdict
    need_bytes: int
    usable_bytes: int
    hours: tuple[float, float, float] | None
    cost: tuple[float, float, float] | None
    run: Run

    @property
    def card_hours(self) -> float:
        """Hours times cards, expected; infinite where the time is not known."""
        return self.hours[1] * self.count if self.hours else float("inf")


def options(job: Job, chosen: Iterable[str], prices: Mapping[str, float]) -> list[Option]:
    """From the smallest count of each card that holds the job to some doublings of it; cheapest first, else fewest card-hours.

    ``prices``: of one card-hour, by card id. The state is divided over the cards (FSDP2) where there are several.
    """
    found: list[Option] = []
    for id in chosen:
        card, first = cards.catalogue().get(id), None
        for doubling, count in enumerate(COUNTS):
            if card is None or (first is not None and doubling - first > MORE_THAN_ENOUGH):
                break
            if (option := _largest_batch(job, card, count, prices.get(id))) is not None:
                first = doubling if first is None else first
                found.append(option)
    return sorted(found, key=lambda o: (o.verdict != "fits", o.cost[1] if o.cost else float("inf"), o.card_hours, o.card.id, o.count))


def placed(job: Job, card: cards.Card, count: int, micro: int) -> Run:
    """The job on so many of a card."""
    parallel = {"strategy": "none", "shard": 1} if count == 1 else {"strategy": "fsdp2", "shard": count}
    changed = job.but(
        hardware={"gpu": card.id, "gpus_per_node": min(count, PER_NODE), "nodes": max(1, count // PER_NODE)}, parallel=parallel, batch={"micro_batch": micro}
    )
    return resolve(changed, Evidence(facts=tuple(Fact(path, changed.get(path), "stated") for path in ("batch.micro_batch", "batch.seq_len"))))


def _largest_batch(job: Job, card: cards.Card, count: int, price: float | None) -> Option | None:
    """With the largest micro batch that fits by the high end of the estimate; else with one sequence, where that is expected to fit."""
    best: Option | None = None
    for micro in MICRO_BATCHES:
        try:
            run = placed(job, card, count, micro)
            ledger = estimate(run)
        except (JobError, CannotEstimate):
            return best
        verdict = judge(run, ledger)[0]
        if verdict not in ("fits", "tight") or (verdict == "tight" and best is not None):
            return best
        seconds = training_seconds(run)
        hours = None if seconds is None else (seconds[0] / 3600, seconds[1] / 3600, seconds[2] / 3600)
        cost = None if hours is None or price is None else (hours[0] * count * price, hours[1] * count * price, hours[2] * count * price)
        usable = run.usable[0] if run.usable else 0
        best = Option(card, count, micro, verdict, needed(ledger).expected, usable, hours, cost, run)
        if verdict == "tight":
            return best
    return best
