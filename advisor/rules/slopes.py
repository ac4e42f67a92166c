"""What a printed series rises by from its smallest to its largest value, against what the estimate of each hypothesis rises by.

A difference of two peaks of one run at two batches or lengths is free of all that does not depend on them: weights, states, contexts, other processes.
So it tells hypotheses about activations apart that single counters leave open. Nothing here looks at words: the figures are :mod:`points`.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.evidence import Evidence
from advisor.job import JobError
from advisor.report import Says
from advisor.rules import points
from advisor.rules.estimating import ledger_of
from advisor.rules.residual import LEAST_ERROR, WORST, relative_error
from advisor.run import Run
from advisor.units import show

LEAST_GAIN = 0.2  # as of the counters: less is no difference
MOST_SERIES = 3


def told(rule: str, faulted: Run | None, run: Run, evidence: Evidence) -> Iterator[Says]:
    """How much better or worse than the run as written a hypothesis explains the rise of a printed series."""
    if faulted is None or faulted is run:
        return
    for found in points.series(evidence)[:MOST_SERIES]:
        low, high = found.points[0], found.points[-1]
        measured = high.bytes - low.bytes
        plain, other = rise(run, found), rise(faulted, found)
        if plain is None or other is None or plain == other:
            continue
        error = max(LEAST_ERROR, round(relative_error(ledger_of(run)) * max(measured, plain, other)))
        gain = _fit(other - measured, error) - _fit(plain - measured, error)
        if abs(gain) < LEAST_GAIN:
            continue
        name = found.setting.rpartition(".")[2]
        sentence = (
            f"from {name} {low.value} to {high.value} memory rises by {show(measured)}; as written it would be {show(max(plain, 0))}, "
            f"with this fault {show(max(other, 0))}"
        )
        yield Says(sentence, high.where, gain > 0, gain, f"{rule}-slope", "the difference of two printed peaks against that of the two estimates")


def rise(run: Run, found: points.Series) -> int | None:
    """The estimated peak at a series' largest value less that at its smallest, bytes; ``None`` where it cannot be estimated."""
    key = f"rise of {found.setting} {found.points[0].value} {found.points[-1].value}"
    if key not in run._cache:
        peaks = [_peak(run, found.setting, point.value) for point in (found.points[0], found.points[-1])]
        run._cache[key] = None if peaks[0] is None or peaks[1] is None else peaks[1] - peaks[0]
    known: int | None = run._cache[key]
    return known


def _peak(run: Run, setting: str, value: int) -> int | None:
    section, _, name = setting.partition(".")
    try:
        ledger = ledger_of(run.but(**{section: {name: value}}))
    except JobError:
        return None
    return None if ledger is None else ledger.peak().bytes


def _fit(distance: int, error: int) -> float:
    return max(WORST, -0.5 * (distance / error) ** 2)
