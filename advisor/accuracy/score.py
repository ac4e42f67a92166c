"""Scores the estimator on measured runs: each case predicted against measured, and the summary the contract names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from msgspec import Struct

from advisor.accuracy.measured import TOTAL_OF, Measurement, load
from advisor.architecture.keys import ConfigError
from advisor.arithmetic import CannotEstimate, estimate
from advisor.faults import strict, told
from advisor.job import JobError
from advisor.ledger import Ledger
from advisor.run import Run, resolve
from advisor.units import GIB, gib

Predict = Callable[[Run, str], Ledger]  # of a run, and the metric that its figure is of


def by_estimate(run: Run, metric: str) -> Ledger:
    """The estimate, of whatever is measured."""
    del metric
    return estimate(run)


class Case(Struct, frozen=True):
    """A scored measurement; ``ape`` is the absolute error in percent of the measured figure, ``None`` where the run ran out."""

    measurement: Measurement
    run: Run
    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    usable_bytes: int | None
    kind: str = "estimated"
    note: str | None = None  # why the estimate stands in for the probe

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.measurement.gib is None else self.predicted_bytes / (self.measurement.gib * GIB)

    @property
    def ape(self) -> float | None:
        """Absolute percentage error."""
        return None if self.ratio is None else abs(self.ratio - 1) * 100

    @property
    def inside(self) -> bool | None:
        """Whether the measured figure lies in the interval."""
        return None if self.measurement.gib is None else self.low_bytes <= self.measurement.gib * GIB <= self.high_bytes

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        m = self.measurement
        return {
            "id": m.id, "metric": m.metric, "measured_gib": m.gib, "predicted_gib": gib(self.predicted_bytes), "low_gib": gib(self.low_bytes),
            "high_gib": gib(self.high_bytes), "ape": None if self.ape is None else round(self.ape, 3), "inside": self.inside, "outcome": m.outcome,
            "source": m.source, "where": m.where, "quality": m.quality, "kind": self.kind, "note": self.note,
        }  # fmt: skip


def judge(measurements: Iterable[Measurement], predict: Predict = by_estimate) -> tuple[list[Case], list[dict[str, str]]]:
    """Score each measurement; what can not be estimated is skipped with its reason, never guessed."""
    cases: list[Case] = []
    skipped: list[dict[str, str]] = []
    for m in measurements:
        if m.job is None:
            skipped.append({"id": m.id, "why": m.problem or "it has no job"})
            continue
        try:
            run = resolve(m.job)
            ledger = predict(run, m.metric)
            total = ledger.totals()[TOTAL_OF[m.metric]]
        except (CannotEstimate, ConfigError, JobError) as error:
            skipped.append({"id": m.id, "why": str(error)})
            continue
        except Exception as error:  # a fault of ours in one row must not take the figures of all others with it
            if strict():
                raise
            skipped.append({"id": m.id, "why": told(error)})
            continue
        stands_in = predict is not by_estimate and ledger.kind == "estimated"
        note = ledger.notes[-1] if stands_in and ledger.notes else None
        cases.append(Case(m, run, total.expected, total.low, total.high, run.usable[0] if run.usable else None, ledger.kind, note))
    return cases, skipped


def summarise(cases: Sequence[Case]) -> dict[str, Any]:
    """Median and 90th percentile of the absolute error, signed bias (median), and how often the interval holds the figure."""
    ratios = sorted(c.ratio - 1 for c in cases if c.ratio is not None)
    errors = sorted(abs(r) * 100 for r in ratios)
    measured = [c for c in cases if c.ratio is not None]
    return {
        "n": len(cases),
        "median_ape": _quantile(errors, 0.5),
        "p90_ape": _quantile(errors, 0.9),
        "bias": None if not ratios else round(_pick(ratios, 0.5) * 100, 3),
        "inside_interval": None if not measured else round(sum(bool(c.inside) for c in measured) / len(measured), 4),
        "false_fits": sum(1 for c in cases if c.measurement.outcome == "ooms" and c.usable_bytes is not None and c.high_bytes < c.usable_bytes),
    }


def score(paths: Iterable[Path | str], *, only: str | None = None, predict: Predict = by_estimate) -> dict[str, Any]:
    """``advisor accuracy FILES``: the contract's JSON."""
    chosen = (m for m in load(paths) if only is None or fnmatch(m.id, only))
    cases, skipped = judge(chosen, predict)
    groups: dict[str, dict[str, list[Case]]] = {"by_source": {}, "by_metric": {}, "by_framework": {}, "by_kind": {}}
    for case in cases:
        groups["by_source"].setdefault(case.measurement.source, []).append(case)
        groups["by_kind"].setdefault(case.kind, []).append(case)
        groups["by_metric"].setdefault(case.measurement.metric, []).append(case)
        groups["by_framework"].setdefault(case.run.job.framework.name or "unstated", []).append(case)
    return {
        **summarise(cases),
        "skipped": skipped,
        **{name: {key: summarise(group) for key, group in sorted(found.items())} for name, found in groups.items()},
        "cases": [c.to_json() for c in sorted(cases, key=lambda c: -(c.ape or 0))],
    }


def _pick(values: Sequence[float], share: float) -> float:
    """The value at a share of a sorted list, between neighbours in proportion."""
    at = (len(values) - 1) * share
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(_pick(values, share), 3) if values else None
