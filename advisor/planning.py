"""Which changes, in which order, until it fits; and the reverse where it fits with room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.evidence import Evidence
from advisor.planner.before import Offer, before
from advisor.planner.buying import nothing_fits
from advisor.planner.constraints import ORDER, Constraints
from advisor.planner.curing import cure, remedies_of
from advisor.planner.layouts import Layout, layouts
from advisor.planner.least import least
from advisor.planner.limits import Limits, limits, max_micro_batch, max_model, max_seq_len, which_cards
from advisor.planner.measuring import MOST_MARGIN, Bench, Candidate
from advisor.planner.quicker import quicker
from advisor.planner.searching import cost
from advisor.planner.spending import spend
from advisor.planner.stages import Found, searched
from advisor.planner.stepping import alternatives, ending, frontier, steps
from advisor.planner.words import spoken, without_estimate
from advisor.report import SAME_TIME, Finding, Plan, Step
from advisor.run import Run
from advisor.units import show
from advisor.verdict import judge


def plan(
    run: Run,
    *,
    causes: Sequence[Finding | str] = (),
    margin_bytes: int | None = None,
    evidence: Evidence | None = None,
    allow: Constraints | None = None,
    capacity_bytes: int | None = None,
) -> Plan:
    """The least set of changes with which the run, as it really is, fits one card.

    Args:
        run: with its deviations: what the causes found are applied already.
        causes: findings, most likely first (or ids of causes): what cures the first one comes first.
        margin_bytes: to stay free. ``None``: the estimate's own error (at most a tenth of the card), or nothing where no such set is found.
        evidence: the capacity printed in the error is used where the card is not known.
        capacity_bytes: usable bytes of one card, where neither says.
    """
    constraints = allow or Constraints()
    failure = evidence.failure if evidence is not None else None
    printed = capacity_bytes or (failure.capacity_bytes if failure is not None else None)
    bench = Bench(run, _capacity(printed), margin_bytes, constraints)
    start = bench.measure(())
    if start is None:
        return Plan(summary=without_estimate(run.missing))
    base, first, stays = cure(bench, start, remedies_of(causes))
    if bench.fits(base) or start.capacity_bytes is None:
        return _already(bench, start, base, first, failed=failure is not None)
    found = searched(bench, start, base)
    kept = first if stays else frozenset()
    if found.sets and not stays and base is not start:
        found = _cured_or_not(bench, start, found)
    if not found.sets:
        return nothing_fits(bench, start, found.freed, first)
    return _done(bench, start, found, first, kept)


def _cured_or_not(bench: Bench, start: Candidate, found: Found) -> Found:
    """Where the first cause's remedy turns out not to be needed, the sets that are found without it, if those are cheaper."""
    best = least(bench, found.sets[0], found.measure, frozenset(), tightly=found.tightly)
    if best is found.sets[0]:
        return found
    others = searched(bench, start, start)
    measure = min(found.measure, others.measure, key=lambda c: c.seconds_per_token)
    if others.sets and (others.tightly, *cost(others.sets[0], measure)) < (found.tightly, *cost(best, measure)):
        return others
    return found._replace(sets=[best, *found.sets[1:]])


def _capacity(printed: int | None) -> Callable[[Run], int | None]:
    def of(run: Run) -> int | None:
        if run.usable is not None:
            return run.usable[0]
        if printed is None:
            return None
        return printed - sum(d.bytes for d in run.deviations if d.kind == "foreign")

    return of


def _already(bench: Bench, start: Candidate, base: Candidate, first: frozenset[str], *, failed: bool) -> Plan:
    capacity = base.capacity_bytes
    found = steps(bench, start, base, first)
    others = alternatives(bench, start, base, spare=capacity is not None and bench.fits(start))
    if capacity is None:
        return Plan(found, None, "Name the card (hardware.gpu): without its capacity a plan can lower the peak, not say when to stop.", alternatives=others)
    room = show(capacity - base.used_bytes)
    if found and bench.fits(start):
        spends = all(step.tier == "spare" for step in found)
        if spends:
            return Plan(found, True, f"By the estimate it fits as it is, with room to spend on speed. {room} is left then.", alternatives=others)
        but, which = (", and yet it failed" if failed else ""), "This step removes" if len(found) == 1 else "These steps remove"
        return Plan(found, True, f"By the estimate it fits as it is written{but}. {which} the most likely cause; {room} is left then.", alternatives=others)
    if found:
        ends = "Nothing else is needed, and new hardware would have hidden the fault." if all(ORDER[s.tier] <= ORDER["fallback"] for s in found) else ""
        other = quicker(bench, start, base)
        beside = steps(bench, start, other, frozenset()) if other is not None else ()
        return Plan(found, True, f"With {'this' if len(found) == 1 else 'these'} it fits, with {room} left. {ends}".strip(), beside, others)
    near = base.capacity_bytes is not None and base.used_bytes > (1 - MOST_MARGIN) * base.capacity_bytes
    edge = near and judge(base.run, base.ledger)[0] == "tight"
    says = f"By the estimate it fits as it is, with {room} left{', which is less than its error' if edge else ''}."
    if failed:
        says += " It failed all the same, so something runs otherwise than was read: see what could not be told."
        return Plan((), True, says, alternatives=others)
    faster = spend(bench, base)
    if faster is base:
        return Plan((), True, says, alternatives=others)
    less = (1 - faster.seconds_per_token / base.seconds_per_token) * 100
    spent = steps(bench, start, faster, first)
    named = ", then ".join(spoken(step.technique, step.title) for step in spent)
    says += f" The room can buy speed: {named}. A token then takes {less:.0f}% less, and {show(capacity - faster.used_bytes)} is left."
    return Plan((), True, says, spent, others, frontier=frontier(bench, start))


def _done(bench: Bench, start: Candidate, found: Found, first: frozenset[str], kept: frozenset[str]) -> Plan:
    tightly = found.tightly
    best = least(bench, found.sets[0], found.measure, kept, tightly=tightly)
    chain = _until_it_fits(steps(bench, start, best, first, tightly=tightly))
    second = _second(bench, found, best, first, kept)
    runner_up = steps(bench, start, second, first, tightly=tightly) if second is not None else ()
    left = show((best.capacity_bytes or 0) - best.used_bytes)
    if not chain:  # the middle of the estimate fits as it is, and nothing light was found that leaves room for its error
        says = f"By the estimate it fits as it is, with {left} left, which is less than its error; no light set of changes was found that leaves more."
        return Plan((), True, says, runner_up, alternatives(bench, start, best), frontier=frontier(bench, start))
    last = max((s.tier for s in chain), key=lambda t: ORDER[t])
    if ORDER[last] <= ORDER["fallback"]:
        says = f"Restoring what was meant is enough: it fits with {left} left. New hardware would have hidden the fault."
    elif all(s.exact and s.step_time_ratio is not None and s.step_time_ratio <= 1 + SAME_TIME for s in chain):  # nothing is given for it: no time, no result
        says = f"With {'this' if len(chain) == 1 else 'these'} it fits with {left} left, at no cost in time or results."
    else:
        entered = {"shard": "dividing or moving state", "batch": "keeping less for the backward pass or a smaller batch"}.get(last, last)
        says = f"It fits with {left} left. What costs nothing was not enough, so the plan goes as far as {entered}."
    if tightly:
        says += " No set was found that leaves room for the estimate's error: watch the first steps."
    if best.alters_learning:
        says += " It changes what is learned; no set was found that does not."
    return Plan(chain, True, says, runner_up, alternatives(bench, start, best), frontier=frontier(bench, start))


def _second(bench: Bench, found: Found, best: Candidate, first: frozenset[str], kept: frozenset[str]) -> Candidate | None:
    """The runner-up: what takes less time with a change that is not needed for it to fit, or else the next set."""
    for c in found.sets:
        faster = cost(c, found.measure) < cost(best, found.measure) and c.altered == best.altered
        other = ending(bench, c, first, tightly=found.tightly) if faster else least(bench, c, found.measure, kept, tightly=found.tightly)
        if other.ids != best.ids and other.run.job != best.run.job:
            return other
    return None


def _until_it_fits(chain: tuple[Step, ...]) -> tuple[Step, ...]:
    """No step beyond the first that fits."""
    fitting = next((n for n, step in enumerate(chain) if step.fits_after), len(chain) - 1)
    return chain[: fitting + 1]


__all__ = [
    "Constraints", "Layout", "Limits", "Offer", "before", "layouts", "limits", "max_micro_batch", "max_model", "max_seq_len", "plan", "which_cards",
]  # fmt: skip
