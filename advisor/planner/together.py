"""Several changes applied to a run one after the other, and what they come to: savings do not add."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from advisor.ledger import Ledger
from advisor.run import Run


class Together(Struct, frozen=True):
    """Several changes applied one after the other: the run, its ledger, the ratio of step times, and what could not be applied."""

    run: Run
    ledger: Ledger
    step_time_ratio: float | None
    refused: tuple[tuple[str, str], ...]


def apply_together(run: Run, techniques: Sequence[str]) -> Together | None:
    """The run with all of the techniques, in the order given; ``None`` where it cannot be estimated."""
    from advisor.arithmetic import CannotEstimate, estimate
    from advisor.job import JobError
    from advisor.techniques import NotApplicable, all_techniques

    changed, refused, known = run, [], all_techniques()
    for name in techniques:
        if name not in known or not known[name].estimated:
            continue
        try:
            result = known[name].apply(changed)
        except JobError as error:
            result = NotApplicable(str(error))
        if isinstance(result, NotApplicable):
            refused.append((name, result.reason))
        else:
            changed = result
    try:
        ledger = estimate(changed)
    except CannotEstimate:
        return None
    return Together(changed, ledger, _ratio(run, changed), tuple(refused))


def _ratio(before: Run, after: Run) -> float | None:
    """Time of the same number of tokens, after over before: a smaller batch takes more steps."""
    from advisor.speed import step_time

    first = step_time(before).seconds_per_token
    return step_time(after).seconds_per_token / first if first else None
