"""A set of changes as the steps of a plan, each re-estimated on top of those before it."""

from __future__ import annotations

from advisor import knowledge
from advisor.planner import words
from advisor.planner.agreeing import agreeing
from advisor.planner.constraints import CUTTING, ORDER, RECOMPUTING
from advisor.planner.lines import changed_lines, lines
from advisor.planner.measuring import Bench, Candidate, Change, ordered, technique_of
from advisor.planner.offering import lowers, lowers_at_most
from advisor.planner.searching import WORSENED
from advisor.report import Point, Step
from advisor.techniques import TIERLESS, Technique, all_techniques
from advisor.units import show

MOST_ALTERNATIVES = 24


def steps(bench: Bench, start: Candidate, end: Candidate, first: frozenset[str], *, tightly: bool = False) -> tuple[Step, ...]:
    """The steps from the run as it is to ``end``, in the order of :func:`in_sequence`."""
    sequence = in_sequence(bench, end, first, tightly=tightly)
    out: list[Step] = []
    before = start
    for index in range(len(sequence)):
        after = end if index == len(sequence) - 1 else bench.measure(sequence[: index + 1])
        if after is None:
            continue
        out.append(_step(bench, sequence[index], before, after, tightly=tightly, end=end))
        before = after
    return agreeing(out)


def in_sequence(bench: Bench, end: Candidate, first: frozenset[str], *, tightly: bool) -> list[Change]:
    """The changes in the order of the steps: what cures the first cause, then by tier; within a tier what only saves time before what makes it fit.

    What cuts the computation itself over cards (a ring, tensor groups, stages) waits until all that is recomputed or smaller is in place: those
    are lines of a config, and without them it would be chosen for too large a problem.
    """
    waits = CUTTING if RECOMPUTING & end.ids else frozenset()

    def key(change: Change) -> tuple[bool, bool, bool, int, bool]:
        tier = technique_of(change).tier
        return change[0] not in first, tier == "hardware", change[0] in waits, ORDER[tier], needed(bench, end, change, tightly=tightly)

    return behind_openers(bench, sorted(end.changes, key=key)) if not end.laid_out else sorted(end.changes, key=key)


def behind_openers(bench: Bench, sequence: list[Change]) -> list[Change]:
    """The sequence, with a change that another one must open, or without which it would need more for now, standing right behind that one."""
    out: list[Change] = []
    waiting: list[Change] = []
    bought = any(technique_of(change).tier == "hardware" for change in sequence)  # on another card it may need less: that comes last all the same
    for change in sequence:
        waiting.append(change)
        for held in tuple(waiting):
            before, after = bench.measure(out), bench.measure((*out, held))
            if after is not None and not (held[0] in WORSENED and not bought and before is not None and after.peak_bytes > 1.005 * before.peak_bytes):
                out.append(held)
                waiting.remove(held)
    return [*out, *waiting]


def needed(bench: Bench, end: Candidate, change: Change, *, tightly: bool) -> bool:
    """Whether it does not fit without a change; all of a layout is needed, and so is what saves no time: the search has left out what does neither."""
    start, alone = bench.measure(()), bench.measure(((change[0], 1),))
    if start is not None and alone is not None and alone.seconds_per_token >= start.seconds_per_token:
        return True
    without = bench.measure(tuple(c for c in end.changes if c != change)) if not end.laid_out else None
    return without is None or not bench.fits(without, tightly=tightly)


def ending(bench: Bench, end: Candidate, first: frozenset[str], *, tightly: bool) -> Candidate:
    """Without what saves time alone and would stand last: a plan ends with the step from which on it fits."""
    while len(end.changes) > 1:
        last = in_sequence(bench, end, first, tightly=tightly)[-1]
        shorter = None if needed(bench, end, last, tightly=tightly) else bench.measure(tuple(c for c in end.changes if c != last))
        if shorter is None:
            break
        end = shorter
    return end


def _step(bench: Bench, change: Change, before: Candidate, after: Candidate, *, tightly: bool, end: Candidate | None = None) -> Step:
    technique = technique_of(change)
    ratio = after.seconds_per_token / before.seconds_per_token if before.seconds_per_token > 0 else None
    why = _why(technique, before, after, ratio, end)
    flags = technique.judged(before.run, after.run)
    return Step(
        technique=technique.id,
        title=title(technique.id),
        tier=technique.tier,
        estimated=technique.estimated,
        before_bytes=before.peak_bytes,
        after_bytes=after.peak_bytes if technique.estimated else None,
        step_time_ratio=ratio if technique.estimated else None,
        exact=flags.exact,
        settings=changed_lines(before.run, after.run, technique.id, end=end.run if end is not None else None),
        why=why,
        fits_after=None if after.capacity_bytes is None else bench.fits(after, tightly=tightly),
        alters_learning=flags.alters_learning,
        run=after.run,
        times=change[1],
    )


def _why(technique: Technique, before: Candidate, after: Candidate, ratio: float | None, end: Candidate | None) -> str:
    if not technique.estimated:
        freed = (after.capacity_bytes or 0) - (before.capacity_bytes or 0)
        if freed > words.NEGLIGIBLE:
            return f"Gives {show(freed)} of the card back. No change of the job is estimated for it."
        return "An action: what it frees cannot be estimated from the job."
    saved = words.saving(before.ledger, after.ledger, before.shown_bytes, after.shown_bytes)
    if lowers_at_most(technique.id, after, before):
        saved = words.bounded(before.ledger, after.ledger)
    flags = technique.judged(before.run, after.run)
    more = words.ring(after.run) if technique.id == "context-parallel" else words.host(before, after, end)
    if technique.tier == "hardware":
        saved = f"{words.hardware(after.run)} {saved}".strip()
    return f"{saved}{more}{words.price(ratio)}{words.learning(flags.exact, flags.alters_learning)}"


def title(technique: str) -> str:
    """The technique's title from its page."""
    try:
        front, _ = knowledge.page("techniques", technique)
    except knowledge.KnowledgeError:
        return technique.replace("-", " ").capitalize()
    return str(front.get("title") or technique)


def alternatives(bench: Bench, start: Candidate, end: Candidate, *, spare: bool = False) -> tuple[Step, ...]:
    """Other single changes of the run as it is that lower the peak (or, where it fits, spend the room on speed), by tier."""
    found: list[tuple[int, int, Step]] = []
    for name, technique in all_techniques().items():
        if name in end.ids or not technique.estimated or name in TIERLESS or not bench.constraints.permits(technique):
            continue
        if (technique.tier == "spare") != spare and technique.tier in ("spare", "hardware"):
            continue
        tried = bench.measure(((name, 1),))
        if tried is None:
            continue
        faster = technique.tier == "spare" and tried.seconds_per_token < start.seconds_per_token and bench.fits(tried)
        if not (faster if technique.tier == "spare" else lowers(tried, start) or lowers_at_most(name, tried, start)):
            continue
        if any(other.run is not None and other.run.job == tried.run.job for _, size, other in found if size == tried.used_bytes):
            continue  # one switch of the trainer that two techniques come to
        rank = -1 if spare and technique.tier == "spare" else ORDER[technique.tier]
        found.append((rank, tried.used_bytes, _step(bench, (name, 1), start, tried, tightly=True)))
    return tuple(step for _, _, step in sorted(found, key=lambda x: x[:2])[:MOST_ALTERNATIVES])


def frontier(bench: Bench, start: Candidate) -> tuple[Point, ...]:
    """Of all sets that were measured and alter nothing that is learned, those that no other beats in both memory and time."""
    kept: list[Point] = []
    fastest = float("inf")
    for c in sorted(bench.measured(), key=lambda c: (c.peak_bytes, c.seconds_per_token)):
        if c.alters_learning or c.seconds_per_token >= fastest or any(technique_of(change).tier == "hardware" for change in c.changes):
            continue
        fastest = c.seconds_per_token
        kept.append(Point(tuple(i for i, _ in c.changes), c.peak_bytes, c.seconds_per_token / max(start.seconds_per_token, 1e-30)))
    return tuple(kept)


__all__ = ["alternatives", "changed_lines", "frontier", "lines", "ordered", "steps", "title"]
