"""What is left where no set of changes fits: which part cannot be made smaller, and the smallest hardware that would do."""

from __future__ import annotations

from typing import Any

from advisor.planner.constraints import ALTERS, EVERYTHING, LAST_RESORT, METHOD, WEIGHT, Constraints
from advisor.planner.hardware import smallest_that_fits
from advisor.planner.least import FREE
from advisor.planner.least import least as smallest_part
from advisor.planner.measuring import Bench, Candidate, technique_of
from advisor.planner.offering import by_saving, options
from advisor.planner.searching import descend, shrink
from advisor.planner.stepping import alternatives, frontier, steps, title
from advisor.planner.words import PART_WORDS
from advisor.report import Plan
from advisor.units import show

LITTLE_LARGER = 1.5  # hardware that is larger by no more than this is named where the smaller one would need a last resort (activations on the host)


def nothing_fits(bench: Bench, start: Candidate, freed: Candidate, first: frozenset[str]) -> Plan:
    """The part that stays too large, and the smallest hardware that would do with what the job can be changed to."""
    bought = 0 if bench.constraints.keep_hardware else 1  # a card is a change too
    able = [c for c in bench.measured() if bench.constraints.within(len(c.changes) + bought) and c.altered <= freed.altered and bench.housed(c)]
    kept = [c for c in able if all(change in c.changes for change in freed.changes)] or able or [freed]
    least = min(kept, key=lambda c: c.used_bytes)
    part, size = max(least.ledger.by_part().items(), key=lambda x: x[1], default=("nothing", 0))
    named = PART_WORDS.get(part, part)
    irreducible = f"On a card as it is, with all that can be changed, {show(least.used_bytes)} are needed of {show(least.capacity_bytes or 0)} usable: "
    irreducible += f"{show(size)} of it {named}."
    hardware = smallest_that_fits(bench, least)
    light = min((c for c in kept if not _last_resorts(c)), key=lambda c: c.used_bytes, default=least)
    if hardware is not None:
        larger = smallest_that_fits(bench, light) if light is not least else None
        if larger is not None and _whole(larger) <= LITTLE_LARGER * _whole(hardware):
            hardware = larger
        lighter = _without_last_resorts(bench, hardware, freed)
        hardware = shrink(bench, lighter, freed, start, tightly=True)  # on the larger hardware not all of it is needed
        hardware = smallest_part(
            bench, hardware, start, first | {name for name, _ in hardware.changes if technique_of((name, 1)).tier not in FREE}, tightly=True
        )
    chain = steps(bench, start, hardware if hardware is not None else least, first, tightly=True)
    if hardware is not None:
        says = f"{_none(bench)} fits this card. {_card_words(hardware)}{_otherwise(bench, freed, hardware)}"
    else:
        says = f"{_none(bench)} fits this card, and no single larger card of the catalogue holds it either: a smaller model, or more cards to divide over."
        says += _otherwise(bench, freed, None)
    return Plan(chain, hardware is not None, says, (), alternatives(bench, start, least), irreducible, frontier(bench, start))


def _none(bench: Bench) -> str:
    return "No set of changes" if bench.constraints == Constraints() else "No set of the changes that are allowed"


def _last_resorts(c: Candidate) -> bool:
    return any(WEIGHT.get(name, 0) >= LAST_RESORT for name in c.ids)


def _whole(c: Candidate) -> int:
    """Usable bytes of all cards together."""
    return (c.capacity_bytes or 0) * c.run.world


def _without_last_resorts(bench: Bench, hardware: Candidate, freed: Candidate) -> Candidate:
    """On the larger hardware what is lighter may do."""
    base = bench.measure((*freed.changes, *(change for change in hardware.changes if technique_of(change).tier == "hardware")))
    if base is None or not _last_resorts(hardware):
        return hardware
    singles = by_saving(bench, base, options(bench, base, EVERYTHING, heavy=1, altering=0))
    lighter = descend(bench, base, singles, tightly=True)
    return lighter if bench.fits(lighter, tightly=True) else hardware


def _otherwise(bench: Bench, freed: Candidate, hardware: Candidate | None) -> str:
    """What would do if something else may be learned: adapters on a packed base often need a much smaller card."""
    able = [c for c in bench.measured() if freed.altered < c.altered <= METHOD and bench.housed(c) and bench.constraints.within(len(c.changes) + 1)]
    least = min(able, key=lambda c: c.used_bytes, default=None)
    smaller = smallest_that_fits(bench, least) if least is not None else None
    if smaller is None:
        return ""
    if hardware is not None and _whole(smaller) >= 0.9 * _whole(hardware):
        return ""
    named = ", ".join(title(name) for name, _ in smaller.changes if ALTERS.get(name))
    card = smaller.run.card.name if smaller.run.card is not None else str(smaller.run.job.hardware.gpu)
    return f" If what is learned may change ({named}), {smaller.run.world} x {card} would do."


def _card_words(c: Candidate) -> str:
    gpu: Any = c.run.job.hardware.gpu
    name = c.run.card.name if c.run.card is not None else str(gpu)
    cards = c.run.world
    return f"With them, the smallest hardware that would do is {cards} x {name}."
