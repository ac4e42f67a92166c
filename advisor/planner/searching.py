"""The cheapest set of changes that fits, tier by tier.

Free changes (copies, then widening and fallbacks) first and as many as are needed. Then sets of the shard tier, then of shard and batch
together, then with what waits for a slower link or cuts the model up, then with what changes what is learned. Within each, sets
are compared by time of a token, then number of changes, then risk. Every set is re-estimated as a whole, because savings do not add;
a set from which a change can be left out is none. The search is bounded: singles, pairs, then a beam.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.planner.constraints import RISK, compatible
from advisor.planner.measuring import Bench, Candidate, Change, Changes, ordered, technique_of
from advisor.planner.offering import MATTERS, PAYS_LATER, by_saving, lowers, options

SAME_TIME = 0.05  # differences below this are less than the estimate of time can tell
WORSENED = frozenset({"smaller-micro-batch", "shorter-sequence"})  # what may decide which kernel attention gets
LINK_BOUND = frozenset({"offload-optimizer", "offload-parameters", "offload-nvme", "offload-activations", "paged-optimizer"})
FIRST_BEAM = 6
BEAM = 4
DEPTH = 6
BUDGET = 150  # estimates of one search, about 1 ms each
ASKED = 6
SHRUNK = 3
GOOD_ENOUGH = 1.03  # of the time of a token: no need to look for a larger set that is faster
DEAR = 1.3  # of the time of a token: what checkpointing costs; what costs more is worth a longer search
ENOUGH_DEPTH = 3  # sets of up to three are looked at even where a smaller one fits; beyond, the first depth that fits is taken


def cost(c: Candidate, start: Candidate) -> tuple[int, float, int, float, int]:
    """How much else is learned, then the time of a token in steps of :data:`SAME_TIME`, then how many changes, then how risky.

    Sets that are faster than the run as it is are told apart by their time only where they are of as many changes: memory was asked for, and a
    change is not added for speed.
    """
    ratio = round(round(c.seconds_per_token / max(start.seconds_per_token, 1e-30) / SAME_TIME) * SAME_TIME, 3)
    return (c.altered, max(1.0, ratio), len(c.changes), ratio, sum(RISK.get(i, 0) for i in c.ids))


def free(bench: Bench, base: Candidate, tier: str) -> Candidate:
    """Take every change of a free tier that matters, the largest saving first, until it fits."""
    while not bench.fits(base) and bench.constraints.within(len(base.changes) + 1):
        best: Candidate | None = None
        for change in options(bench, base, frozenset({tier}), heavy=0, altering=0):
            tried = bench.measure((*base.changes, change))
            if tried is not None and (best is None or (not bench.may_fit(tried), tried.used_bytes) < (not bench.may_fit(best), best.used_bytes)):
                best = tried
        threshold = MATTERS * (base.capacity_bytes or base.used_bytes)
        if best is None or base.used_bytes - best.used_bytes < threshold:
            return base
        base = best
    return base


def quickest(bench: Bench, base: Candidate, start: Candidate) -> Candidate:
    """What times are measured by: the run without the faults that slow it, or else a plan could spend the time that repairing one of them saves."""
    repaired = [bench.measure((*base.changes, change)) for change in options(bench, base, frozenset({"copies", "fallback"}), heavy=0, altering=0)]
    return min((start, base, *(c for c in repaired if c is not None)), key=lambda c: c.seconds_per_token)


def search(bench: Bench, base: Candidate, start: Candidate, tiers: frozenset[str], *, heavy: int, altering: int, tightly: bool = False) -> list[Candidate]:
    """Fitting minimal sets on top of ``base``, cheapest first; empty where none was found."""
    singles = by_saving(bench, base, options(bench, base, tiers, heavy=heavy, altering=altering))
    everything = descend(bench, base, singles, tightly=tightly)
    if not bench.fits(everything, tightly=tightly):
        return []  # even all of it together is not enough: a later stage has more to choose from
    seen: dict[Changes, Candidate] = {}

    def extended(c: Candidate, change: Change) -> Candidate | None:
        wanted = (*c.changes, change)
        names = frozenset(i for i, _ in wanted)
        if len(names) < len(wanted) or not compatible(names) or ordered(wanted) in seen:
            return None
        if not bench.constraints.within(len(wanted)):
            return None
        tried = bench.measure(wanted)
        if tried is not None:
            seen[tried.changes] = tried
        return tried

    level = [base]
    found: list[Candidate] = []
    limit = bench.spent + BUDGET
    for depth in range(1, DEPTH + 1):
        grown = [c for parent in level for s in singles if bench.spent < limit and (c := extended(parent, s)) is not None and (depth == 1 or lowers(c, parent))]
        found.extend(_proven(bench, grown, start, tightly=tightly))
        cheapest = min((cost(c, start)[:2] for c in found if not any(set(other.changes) < set(c.changes) for other in found)), default=None)
        if not grown or bench.spent >= limit:
            break
        open_ones = [c for c in grown if c not in found and (cheapest is None or cost(c, start)[:2] < cheapest)]
        quick = cheapest is not None and (cheapest[1] <= GOOD_ENOUGH or (depth >= ENOUGH_DEPTH and cheapest[1] <= DEAR))
        if quick and not any(cheapest is not None and c.altered < cheapest[0] for c in open_ones):
            break
        level = _beam(open_ones, BEAM if depth > 1 else FIRST_BEAM)
    best = sorted(found, key=lambda c: cost(c, start))[:SHRUNK] or [everything]
    minimal = {m.changes: m for c in best if (m := shrink(bench, c, base, start, tightly=tightly))}
    ranked = sorted((_repaired(bench, c, start, tightly=tightly) for c in minimal.values()), key=lambda c: cost(c, start))
    faster = quickened(bench, ranked[0], base, singles, start, tightly=tightly)
    return ranked if faster is ranked[0] else [ranked[0], faster, *ranked[1:]]


def descend(bench: Bench, base: Candidate, singles: list[Change], *, tightly: bool) -> Candidate:
    """A set that fits, or about the least that these changes can reach: one after the other while it still saves, beginning with each that excludes others."""
    least = _greedy(bench, base, singles)
    for first in singles:
        if bench.fits(least, tightly=tightly):
            return least
        if first[0] in PAYS_LATER | {"lora", "dora", "galore"}:
            least = min(least, _greedy(bench, base, [first, *(s for s in singles if s != first)]), key=lambda c: c.used_bytes)
    if not bench.fits(least, tightly=tightly) and WORSENED & least.ids:
        least = min(least, _greedy(bench, base, [s for s in singles if s[0] not in WORSENED]), key=lambda c: c.used_bytes)
    return least


def _greedy(bench: Bench, base: Candidate, singles: list[Change]) -> Candidate:
    c = base
    for _ in range(2):  # what another change opened, or made worth it, is tried once more
        for name, times in singles:
            names = c.ids | {name}
            if name in c.ids or not compatible(names) or not bench.constraints.within(len(names)):
                continue
            tried = bench.measure((*c.changes, (name, times)))
            if tried is not None and (lowers(tried, c) or (c is base and name in PAYS_LATER)):
                c = tried
        c = _helping(bench, c, base)
    return c


def _helping(bench: Bench, c: Candidate, base: Candidate) -> Candidate:
    """Without the changes that the rest has made worse than none: one sequence on a card that fuses no attention without a mask needs more than two."""
    while (adverse := adding(bench, c, base)) is not None:
        c = adverse
    return c


def adding(bench: Bench, c: Candidate, base: Candidate) -> Candidate | None:
    """``c`` without a change that makes it need more, where it has one."""
    for change in added(c, base) if len(c.changes) > 1 else ():
        less = bench.measure(tuple(x for x in c.changes if x != change)) if change[0] in WORSENED else None
        if less is not None and c.used_bytes > less.used_bytes + MATTERS * (c.capacity_bytes or c.used_bytes):
            return less
    return None


def _proven(bench: Bench, grown: list[Candidate], start: Candidate, *, tightly: bool) -> list[Candidate]:
    """The cheapest of those that may fit whose range fits too: the range is asked of few, because it costs several estimates."""
    hopeful = sorted((c for c in grown if bench.may_fit(c)), key=lambda c: cost(c, start))
    proven: list[Candidate] = []
    for c in hopeful[:ASKED]:
        if bench.fits(c, tightly=tightly) and adding(bench, c, bench.measure(()) or c) is None:
            proven.append(c)
            if len(proven) == SHRUNK:
                break
    if not proven and hopeful and not tightly:
        least = min(hopeful, key=lambda c: c.used_bytes)  # where the cheapest have no room for the range, the smallest may
        proven = [least] if bench.fits(least) else []
    return proven


def _beam(level: list[Candidate], width: int) -> list[Candidate]:
    """The smallest, and those that are small for their time."""
    by_size = sorted(level, key=lambda c: c.used_bytes)
    by_worth = sorted(level, key=lambda c: c.used_bytes * c.seconds_per_token)
    chosen = {c.changes: c for pair in zip(by_size, by_worth, strict=True) for c in pair}
    return list(chosen.values())[:width]


def added(c: Candidate, base: Candidate) -> tuple[Change, ...]:
    """The changes of ``c`` beyond ``base``."""
    return tuple(change for change in c.changes if change not in base.changes)


def quickened(bench: Bench, c: Candidate, base: Candidate, singles: list[Change], start: Candidate, *, tightly: bool) -> Candidate:
    """With what is not needed for it to fit, costs no exactness and takes back time that the rest costs: a runner-up.

    To a set that is no slower than the run as it is nothing is added.
    """
    for change in singles:
        if cost(c, start)[1] <= GOOD_ENOUGH:
            break
        alone, names = bench.measure((*base.changes, change)), c.ids | {change[0]}
        if alone is None or alone.seconds_per_token >= base.seconds_per_token or change[0] in c.ids or not compatible(names):
            continue
        tried = bench.measure((*c.changes, change)) if technique_of(change).exact and bench.constraints.within(len(names)) else None
        if tried is not None and tried.exact == c.exact and bench.fits(tried, tightly=tightly) and cost(tried, start) < cost(c, start):
            c = tried
    return c


def shrink(bench: Bench, c: Candidate, base: Candidate, start: Candidate, *, tightly: bool = False, stays: frozenset[str] = frozenset()) -> Candidate:
    """Leave out, or weaken, what is not needed for it to fit (but for what ``stays``): each time what leaves the cheapest set."""
    while True:
        fitting = [less for less in _lesser(bench, c, base) if stays <= less.ids and bench.fits(less, tightly=tightly)]
        if not fitting:
            return c
        c = min(fitting, key=lambda less: cost(less, start))


def _lesser(bench: Bench, c: Candidate, base: Candidate) -> Iterator[Candidate]:
    """``c`` without one of its changes beyond ``base``, or with one of them applied less often."""
    for change in added(c, base):
        rest = tuple(x for x in c.changes if x != change)
        for times in range(change[1]):
            tried = bench.measure((*rest, (change[0], times)) if times else rest)
            if tried is not None:
                yield tried


def _repaired(bench: Bench, c: Candidate, start: Candidate, *, tightly: bool) -> Candidate:
    """With the repairs that take time off a set that costs some: what was meant to run fast, and does not."""
    if cost(c, start)[1] <= GOOD_ENOUGH:
        return c
    for change in options(bench, c, frozenset({"copies", "fallback"}), heavy=0, altering=0):
        tried = bench.measure((*c.changes, change)) if change[0] not in c.ids and bench.constraints.within(len(c.changes) + 1) else None
        if tried is not None and tried.altered == c.altered and cost(tried, start) < cost(c, start) and bench.fits(tried, tightly=tightly):
            c = tried
    return c


def restored(bench: Bench, c: Candidate, freed: Candidate, start: Candidate, *, tightly: bool = False) -> Candidate:
    """Before anything waits for the host's link: what costs nothing and still saves is added, and what is then not needed is left out."""
    if not LINK_BOUND & c.ids:
        return c
    grown, kept, opened = c, freed, frozenset[str]()
    for change in options(bench, c, frozenset({"copies", "fallback"}), heavy=0, altering=0):
        tried = bench.measure((*grown.changes, change)) if change[0] not in grown.ids and bench.constraints.within(len(grown.changes) + 1) else None
        if tried is None or grown.used_bytes - tried.used_bytes <= MATTERS * (c.capacity_bytes or 0):
            continue
        beside = bench.measure((*kept.changes, change))
        grown, kept, opened = tried, beside or kept, opened if beside is not None else opened | {change[0]}  # opened: only beside the rest of the set
    return c if grown is c else shrink(bench, grown, kept, start, tightly=tightly, stays=opened)
