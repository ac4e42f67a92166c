"""Stage by stage: what is free, then what only divides, then the rest, the heavier the later, and at last what changes what is learned."""

from __future__ import annotations

from typing import NamedTuple

from advisor.planner.constraints import EVERYTHING, METHOD
from advisor.planner.laying_out import laid_out
from advisor.planner.measuring import Bench, Candidate
from advisor.planner.searching import cost, free, quickest, restored, search

FREE = ("copies", "fallback")
ANY = 99  # beyond another method: samples that are cut
STAGES: tuple[tuple[frozenset[str], int, int], ...] = (
    # tiers; how heavy a change may be (advisor.planner.constraints.WEIGHT); how much else may be learned (constraints.ALTERS)
    (frozenset({*FREE, "shard"}), 0, 0),
    (EVERYTHING, 0, 0),
    (EVERYTHING, 1, 0),
    (EVERYTHING, 2, 0),
    (EVERYTHING, 3, 0),
    (EVERYTHING, 0, METHOD),
    (EVERYTHING, 3, METHOD),
    (EVERYTHING, 1, ANY),
)
SLOW = 3.0  # of the time of a token, from which what learns otherwise is shown beside the plan
CUTTING = 2  # the weight of what cuts matrices, layers or the sequence: there the degrees are chosen together


class Found(NamedTuple):
    """Sets that fit, cheapest first; ``freed``: the run after the free changes; ``measure``: what times are measured by."""

    sets: list[Candidate]
    freed: Candidate
    measure: Candidate
    tightly: bool = False


def searched(bench: Bench, start: Candidate, base: Candidate, altering: int = ANY) -> Found:
    """What is free, and then the first stage of :data:`STAGES` that has sets which fit; ``altering``: how much else may be learned at most."""
    for tier in FREE:
        base = free(bench, base, tier)
    freed, measure = base, quickest(bench, base, start)
    if bench.fits(base):
        return Found([base], freed, measure)
    anyhow = bench.margin_bytes is None
    for tiers, heavy, learned in STAGES:
        if learned > altering:
            continue
        if heavy == CUTTING and not learned and (cut := laid_out(bench, freed, measure) or laid_out(bench, freed, measure, tightly=anyhow)):
            return Found(cut, freed, measure, tightly=not bench.fits(cut[0]))
        for tightly in (False, True) if anyhow and (learned or heavy) else (False,):
            found = search(bench, freed, measure, tiers, heavy=heavy, altering=learned, tightly=tightly)
            if found:
                found[0] = restored(bench, found[0], freed, measure, tightly=tightly)
                if not learned and altering and cost(found[0], measure)[1] > SLOW:  # another way of learning may be worth so much time
                    others = search(bench, freed, measure, EVERYTHING, heavy=0, altering=METHOD, tightly=tightly)
                    found[1:1] = [c for c in others if c.altered > found[0].altered][:1]
                return Found(found, freed, measure, tightly=tightly)
    return Found([], freed, measure)
