"""``advisor plan JOB --limits`` and ``--before``: solved numbers, and what each card would take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.cli import UserError
from advisor.commands import allowed, options, output

if TYPE_CHECKING:
    from advisor.planner.before import Offer, Range
    from advisor.run import Run

MOST_ROWS = 16


def limits(run: Run, *, as_json: bool) -> int:
    """Print the solved numbers; 3 where the card is not known."""
    from advisor.planning import limits as solve
    from advisor.units import show

    found = solve(run)
    if found is None:
        raise UserError("the card is not known; state it with --gpu")
    if as_json:
        output.write(json.dumps({"version": 1, **found.to_json()}, indent=2) + "\n")
        return 0
    paper = output.sheet()
    paper.say(f"Within {show(found.capacity_bytes)} of one card, everything else as it is:", "bold")
    for label, value in (
        ("largest micro batch", _count(found.micro_batch, "sequences")),
        ("longest sequence", _count(found.seq_len, "tokens")),
        ("largest known model", "none of the catalogue" if found.model is None else f"{found.model[0]} ({found.model[1] / 1e9:.1f} B parameters)"),
    ):
        paper.say(f"{label}: {value}", indent=2)
    output.write(paper.text())
    return 0


def before(run: Run, args: argparse.Namespace) -> int:
    """Print a line for each number of cards; 0 where one fits (within time and money, if they were said), else 1."""
    from advisor.planner.before import recommended
    from advisor.planning import before as offers

    prices = dict(_price(text) for text in args.price)
    wanted = options.amount("--tokens", args.tokens, "tokens")
    hours, budget = options.amount("--hours", args.hours, "hours"), options.amount("--budget", args.budget, "units of money")
    tokens = None if wanted is None else max(1, int(wanted))
    try:
        allow, margin = allowed.of(args)
        found = offers(run, total_tokens=tokens, prices=prices or None, most_hours=hours, budget=budget, allow=allow, margin_bytes=margin)
    except ValueError as error:
        raise UserError(str(error)) from None
    best = recommended(found)
    if args.json:
        first = {"recommended": best.to_json() if best is not None else None}
        output.write(json.dumps({"version": 1, **first, "offers": [o.to_json() for o in found]}, indent=2) + "\n")
        return 0 if best is not None else 1
    paper = output.sheet()
    known = tokens or run.job.batch.total_tokens
    if not known:
        paper.say("Say the tokens of the run (--tokens) to see hours and cost.")
    if best is not None:
        paper.say(f"Take {best.cards} x {best.card}: {_why(best)}.", "bold")
        paper.say(_row(best, hours, budget), indent=2)
    elif any(o.verdict != "ooms" for o in found):
        paper.say("It fits on these cards, and none keeps to the time and money given.", "bold")
    else:
        paper.say("None of these cards holds it, up to eight of them in one node.", "bold")
    shown = list({offer.card: offer for offer in reversed(found)}.values())[::-1]  # the best number of each card
    paper.say("The best number of each card" + (f", for {known:,} tokens:" if known else ":"), "bold")
    for offer in shown[:MOST_ROWS]:
        paper.say(_row(offer, hours, budget), indent=2)
    if len(found) > len(shown[:MOST_ROWS]):
        paper.say(f"and {len(found) - len(shown[:MOST_ROWS])} more (--json shows all)", "dim", indent=2)
    output.write(paper.text())
    return 0 if best is not None else 1


def _why(best: Offer) -> str:
    """By what the first offer is the first."""
    kept = "of what surely fits" if best.verdict == "fits" else "of what is expected to fit, without margin"
    if best.cost is not None:
        return f"the lowest cost {kept}"
    return f"the fewest card-hours {kept}" if best.hours is not None else f"the fewest and smallest cards {kept}"


def _row(offer: Offer, most_hours: float | None, budget: float | None) -> str:
    from advisor.units import show

    parts = [f"{offer.cards} x {offer.card}: {offer.verdict}, {show(offer.used_bytes)} of {show(offer.usable_bytes)}"]
    if offer.hours is not None:
        parts.append(f"{_range(offer.hours)} h")
    if offer.cost is not None:
        parts.append(f"cost {_range(offer.cost)}")
    parts.append(f"host {show(offer.storage.host_bytes)}, a checkpoint {show(offer.storage.checkpoint_bytes)}")
    if offer.changes:
        parts.append("with " + ", ".join(offer.changes))
    if offer.batch:
        parts.append(offer.batch)
    if offer.within is False and offer.verdict != "ooms":
        parts.append(" and ".join(_beyond(offer, most_hours, budget)))
    return "; ".join(parts)


def _beyond(offer: Offer, most_hours: float | None, budget: float | None) -> Iterator[str]:
    """Which limits an offer is beyond: each is judged by the high end of its range."""
    for option, figure, most, unit in (("--hours", offer.hours, most_hours, " h"), ("--budget", offer.cost, budget, "")):
        if most is not None and figure is None:
            yield f"not known to be within {option} {most:,g}"
        elif most is not None and figure is not None and figure.high > most:
            yield f"beyond {option} {most:,g}: up to {figure.high:,.1f}{unit}"


def _range(figure: Range) -> str:
    return f"{figure.expected:,.1f} ({figure.low:,.1f} to {figure.high:,.1f})"


def _count(value: int | None, unit: str) -> str:
    return "could not be solved" if value is None else "not even one" if value == 0 else f"{value:,} {unit}"


def _price(text: str) -> tuple[str, float]:
    card, equals, number = text.partition("=")
    try:
        price = float(number)
    except ValueError:
        price = -1.0
    if not equals or not card or not 0 <= price < 1e9:
        raise UserError(f"--price {text}: a card's id and a number are expected, like a100-80gb=2.0")
    return card, price
