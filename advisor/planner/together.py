"""Several changes applied to a run one after the other, and what they come to: savings do not add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from advisor.ledger import Ledger
from advisor.report import Plan, Step
from advisor.run import Run

if TYPE_CHECKING:
    from advisor.techniques import NotApplicable, Technique


class Together(Struct, frozen=True):
    """Several changes applied one after the other: the run, its ledger, the ratio of step times, and what could not be applied."""

    run: Run
    ledger: Ledger
    step_time_ratio: float | None
    refused: tuple[tuple[str, str], ...]


def apply_together(run: Run, techniques: Sequence[str], plan: Plan | None = None) -> Together | None:
    """The run with all of the techniques, in the order given; ``None`` where it cannot be estimated.

    ``plan``: whose steps they may be. A step is then made as it was planned: a micro batch that the plan halves twice is halved twice, and
    as far as the techniques are the plan's own from its first step on, they come to the run that the plan shows.
    """
    from advisor.arithmetic import CannotEstimate, estimate
    from advisor.techniques import NotApplicable, all_techniques

    steps = tuple(s for s in plan.steps if s.estimated) if plan is not None else ()
    often = {s.technique: s.times for s in steps}
    changed, done = _as_planned(run, steps, techniques)
    refused, known = [], all_techniques()
    for name in techniques:
        if name in done or name not in known or not known[name].estimated:
            continue
        result = _applied(known[name], changed, often.get(name, 1))
        if isinstance(result, NotApplicable):
            refused.append((name, result.reason))
        else:
            changed = result
    try:
        ledger = estimate(changed)
    except CannotEstimate:
        return None
    return Together(changed, ledger, _ratio(run, changed), tuple(refused))


def _as_planned(run: Run, steps: Sequence[Step], techniques: Sequence[str]) -> tuple[Run, frozenset[str]]:
    """The run after as many of the plan's first steps as are wanted without a gap, and which these are.

    A layout is chosen as a whole, and a plan applies its changes in another order than it shows them: made one after the other, they would come
    to another run. A step that does not go on from the one before it (a second cure, in place of the first) ends it.
    """
    from advisor.arithmetic import CannotEstimate, estimate

    try:
        bytes = estimate(run).peak().bytes if steps else None
    except CannotEstimate:
        bytes = None
    at, done = run, []
    for step in steps:
        if step.technique not in techniques or step.run is None or step.before_bytes != bytes:
            break
        at, bytes = step.run, step.after_bytes
        done.append(step.technique)
    return at, frozenset(done)


def _applied(technique: Technique, run: Run, times: int) -> Run | NotApplicable:
    """The run with a technique applied so many times; what does not go together is said."""
    from advisor.job import JobError
    from advisor.techniques import NotApplicable

    try:
        if technique.often is not None:
            return technique.often(run, times)
        changed: Run | NotApplicable = run
        for _ in range(times):
            if not isinstance(changed, NotApplicable):
                changed = technique.apply(changed)
        return changed
    except JobError as error:
        return NotApplicable(str(error))


def _ratio(before: Run, after: Run) -> float | None:
    """Time of the same number of tokens, after over before: a smaller batch takes more steps."""
    from advisor.speed import step_time

    first = step_time(before).seconds_per_token
    return step_time(after).seconds_per_token / first if first else None
