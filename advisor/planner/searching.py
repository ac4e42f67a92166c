"""The cheapest set of changes that fits, tier by tier.

Free changes (copies, then widening and fallbacks) first and as many as are needed. Then sets of the shard tier, then of shard and batch
together, then with what waits for a slower link or cuts the model up, then with what changes what is learned. Within each, sets
are compared by time of a token, then number of changes, then risk. Every set is re-estimated as a whole, because savings do not add;
a set from which a change can be left out is none. The search is bounded: singles, pairs, then a beam.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from advisor.planner.constraints import HEAVY, REPEATABLE, RISK, compatible
from advisor.planner.measuring import Bench, Candidate, Change, Changes
from advisor.techniques import TIERLESS, all_techniques

MATTERS = 0.004  # share of the capacity below which a free change is not worth a step of the plan
BEAM = 5
DEPTH = 6


def cost(c: Candidate, start: Candidate) -> tuple[int, float, int, int]:
    """Altering last, then the time of a token in whole per cents, then how many changes, then how risky."""
    return (c.alters_learning, round(c.seconds_per_token / max(start.seconds_per_token, 1e-30), 2), len(c.changes), sum(RISK.get(i, 0) for i in c.ids))


def options(bench: Bench, base: Candidate, tiers: frozenset[str], *, heavy: bool, altering: bool) -> list[Change]:
    """Single changes of the tiers that lower what ``base`` needs, repeatable ones at several strengths."""
    found: list[Change] = []
    for name, technique in all_techniques().items():
        if technique.tier not in tiers or not technique.estimated or name in base.ids or name in TIERLESS or not bench.constraints.permits(technique):
            continue
        if (name in HEAVY) and not heavy:
            continue
        single = bench.measure((*base.changes, (name, 1)))
        if single is None or (single.alters_learning and not base.alters_learning and not altering):
            continue
        helps = single.used_bytes < base.used_bytes or single.peak_bytes < base.peak_bytes
        if helps or name in ("zero-1", "zero-2", "zero-3", "fsdp"):  # dividing may pay only with the next change
            found.append((name, 1))
            found.extend(_stronger(bench, base, name, single))
    return found


def _stronger(bench: Bench, base: Candidate, name: str, single: Candidate) -> list[Change]:
    out: list[Change] = []
    last = single
    for times in range(2, REPEATABLE.get(name, 1) + 1):
        if bench.fits(last):
            break
        more = bench.measure((*base.changes, (name, times)))
        if more is None or more.used_bytes >= last.used_bytes:
            break
        out.append((name, times))
        last = more
    return out[:2] + out[-1:] if len(out) > 3 else out


def free(bench: Bench, base: Candidate, tier: str) -> Candidate:
    """Take every change of a free tier that matters, the largest saving first, until it fits."""
    while not bench.fits(base):
        best: Candidate | None = None
        for change in options(bench, base, frozenset({tier}), heavy=False, altering=False):
            tried = bench.measure((*base.changes, change))
            if tried is not None and (best is None or (not bench.fits(tried), tried.used_bytes) < (not bench.fits(best), best.used_bytes)):
                best = tried
        threshold = MATTERS * (base.capacity_bytes or base.used_bytes)
        if best is None or base.used_bytes - best.used_bytes < threshold:
            return base
        base = best
    return base


def search(bench: Bench, base: Candidate, start: Candidate, tiers: frozenset[str], *, heavy: bool, altering: bool, tightly: bool = False) -> list[Candidate]:
    """Fitting minimal sets on top of ``base``, cheapest first; empty where none was found."""
    singles = options(bench, base, tiers, heavy=heavy, altering=altering)
    found: dict[Changes, Candidate] = {}

    def consider(changes: Iterable[Change]) -> Candidate | None:
        wanted = (*base.changes, *changes)
        if not compatible(frozenset(i for i, _ in wanted)) or len({i for i, _ in wanted}) < len(wanted):
            return None
        if bench.constraints.most_changes is not None and len(wanted) > bench.constraints.most_changes:
            return None
        tried = bench.measure(wanted)
        if tried is not None and bench.fits(tried, tightly=tightly):
            found[tried.changes] = tried
        return tried

    first = [c for s in singles if (c := consider((s,))) is not None]
    best = min((cost(c, start)[1] for c in found.values()), default=None)
    if best is None or best > 1.03:
        level = first
        strongest = sorted(first, key=lambda c: c.used_bytes)[:10]
        pairs = [c for a, b in combinations(strongest, 2) if (c := consider((*added(a, base), *added(b, base)))) is not None]
        level = pairs or first
        depth = 2
        while not found and level and depth < DEPTH and bench.spent < bench.budget:
            beam = _beam(level)
            level = [c for b in beam for s in singles if (c := consider((*added(b, base), s))) is not None and c.used_bytes < b.used_bytes]
            depth += 1
    minimal = {m.changes: m for c in found.values() if (m := shrink(bench, c, base, tightly=tightly))}
    return sorted(minimal.values(), key=lambda c: cost(c, start))


def _beam(level: list[Candidate]) -> list[Candidate]:
    seen: dict[Changes, Candidate] = {c.changes: c for c in level}
    return sorted(seen.values(), key=lambda c: c.used_bytes)[:BEAM]


def added(c: Candidate, base: Candidate) -> tuple[Change, ...]:
    """The changes of ``c`` beyond ``base``."""
    return tuple(change for change in c.changes if change not in base.changes)


def shrink(bench: Bench, c: Candidate, base: Candidate, *, tightly: bool = False) -> Candidate:
    """Leave out, and weaken, what is not needed for it to fit."""
    for change in sorted(added(c, base), key=lambda x: -RISK.get(x[0], 0)):
        name, times = change
        for weaker in [None] if times == 1 else [None, *((name, t) for t in range(1, times))]:
            rest = tuple(x for x in c.changes if x != change)
            tried = bench.measure(rest if weaker is None else (*rest, weaker))
            if tried is not None and bench.fits(tried, tightly=tightly):
                c = tried
                break
    return c
