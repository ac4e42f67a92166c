"""Which single changes a search has to choose from: those that save something, alone, in some phase, or once another has opened the way."""

from __future__ import annotations

from collections.abc import Collection

from advisor.planner.constraints import DIVIDING, OPENERS, REPEATABLE, WEIGHT, compatible
from advisor.planner.measuring import Bench, Candidate, Change
from advisor.techniques import TIERLESS, all_techniques

MATTERS = 0.004  # share of the capacity below which a change is not worth a step of the plan
WIDTH = 12
BOUNDED = frozenset({"limit-all-gathers"})  # how far a fast host runs ahead of the card is a matter of the two speeds
PAYS_LATER = DIVIDING | {"qlora"}  # these may pay only together with the next change


def options(bench: Bench, base: Candidate, tiers: frozenset[str], *, heavy: int, altering: int) -> list[Change]:
    """Changes of the tiers that lower what ``base`` needs by themselves, or on top of one that opens the way; repeatable ones at several strengths."""
    found = _singles(bench, base, tiers, heavy=heavy, altering=altering)
    known = {name for name, _ in found}
    for opener in [name for name, _ in found if name in OPENERS]:
        opened = bench.measure((*base.changes, (opener, 1)))
        if opened is None:
            continue
        after = _singles(bench, opened, tiers, heavy=heavy, altering=altering, besides=known)
        found += after
        known |= {name for name, _ in after}
    return found


def _singles(bench: Bench, base: Candidate, tiers: frozenset[str], *, heavy: int, altering: int, besides: Collection[str] = ()) -> list[Change]:
    found: list[Change] = []
    like: dict[tuple[int, int], list[Candidate]] = {}
    for name, technique in all_techniques().items():
        if name in besides or technique.tier not in tiers or not technique.estimated or name in base.ids or name in TIERLESS:
            continue
        if WEIGHT.get(name, 0) > heavy or not bench.constraints.permits(technique) or not compatible(base.ids | {name}):
            continue
        single = bench.measure((*base.changes, (name, 1)))
        if single is None or single.altered - base.altered > altering:
            continue
        same = like.setdefault((single.used_bytes, single.peak_bytes), [])
        if any(other.run.job == single.run.job for other in same):
            continue  # one switch of the trainer that two techniques come to
        same.append(single)
        if lowers(single, base) or name in PAYS_LATER or _lowers_a_phase(single, base) > 0:
            found.append((name, 1))
            found.extend(_stronger(bench, base, name, single))
    return found


def _lowers_a_phase(c: Candidate, base: Candidate) -> int:
    """Bytes that the phase in which it saves most needs less: a change may show only once another one has moved the peak there."""
    after = c.ledger.phases()
    return max((size - after.get(phase, size) for phase, size in base.ledger.phases().items()), default=0)


def lowers(c: Candidate, base: Candidate) -> bool:
    """Whether it needs less than ``base``: tensors at the peak, or what the device shows."""
    return c.used_bytes < base.used_bytes or c.peak_bytes < base.peak_bytes or c.shown_bytes < base.shown_bytes


def lowers_at_most(name: str, c: Candidate, base: Candidate) -> bool:
    """Whether it lowers the high end of the estimate alone: what is held without it is bounded, and how much of it is not known."""
    return name in BOUNDED and c.used_bytes == base.used_bytes and c.error_bytes < base.error_bytes


def _stronger(bench: Bench, base: Candidate, name: str, single: Candidate) -> list[Change]:
    out: list[Change] = []
    last = single
    for times in range(2, REPEATABLE.get(name, 1) + 1):
        if bench.may_fit(last):
            break
        more = bench.measure((*base.changes, (name, times)))
        if more is None or more.used_bytes >= last.used_bytes:
            break
        out.append((name, times))
        last = more
    return out[:1] + out[-1:] if len(out) > 2 else out


def by_saving(bench: Bench, base: Candidate, singles: list[Change]) -> list[Change]:
    """The changes that save most, at most :data:`WIDTH`; those that divide or pack are kept, because they pay with others."""
    least = MATTERS * (base.capacity_bytes or base.used_bytes)
    openers = [name for name, _ in singles if name in OPENERS]
    gains = {change: _gain(bench, base, change, openers) for change in singles}
    kept = [change for change in singles if gains[change] > least or change[0] in PAYS_LATER]
    ranked = sorted(kept, key=lambda change: (change[0] not in PAYS_LATER, -gains[change]))
    return sorted(ranked[:WIDTH], key=lambda change: -gains[change])


def _gain(bench: Bench, base: Candidate, change: Change, openers: list[str]) -> int:
    """Bytes that a change saves alone, or, where it does not alone, on top of what opens the way for it.

    Halving the micro batch of a full fine-tuning keeps gradients from pass to pass, and saves nothing; of adapters it saves half the activations.
    """
    alone = bench.measure((*base.changes, change))
    gain = max(base.used_bytes - alone.used_bytes, _lowers_a_phase(alone, base)) if alone is not None else 0
    if gain > 0:
        return gain
    for opener in openers:
        if opener == change[0]:
            continue
        opened, both = bench.measure((*base.changes, (opener, 1))), bench.measure((*base.changes, (opener, 1), change))
        if opened is not None and both is not None:
            gain = max(gain, opened.used_bytes - both.used_bytes)
    return gain
