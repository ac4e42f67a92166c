"""Series of memory figures over steps: what grows, what stays, and what falls apart before the failure.

Samples are what readers found at named points of a log. A series is the samples with the same label, in order of step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advisor.evidence import Evidence, Sample
from advisor.units import MIB

LEAST_POINTS = 3
LEAST_RISE = 0.10  # of the last value: below that it is a workspace warming up


@dataclass(frozen=True, slots=True)
class Series:
    """Figures of one label over steps, bytes."""

    label: str
    where: str
    steps: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def rises(self) -> bool:
        """Whether it never falls and rises clearly from its first to its last point."""
        pairs = zip(self.values, self.values[1:], strict=False)
        return all(b >= a for a, b in pairs) and self.values[-1] - self.values[0] > max(LEAST_RISE * self.values[-1], 32 * MIB)

    @property
    def even(self) -> bool:
        """Whether it rises by about the same for each step: something is kept at every step."""
        if not self.rises:
            return False
        slopes = [(v2 - v1) / max(1, s2 - s1) for s1, s2, v1, v2 in zip(self.steps, self.steps[1:], self.values, self.values[1:], strict=False)]
        mean = sum(slopes) / len(slopes)
        return all(abs(s - mean) <= 0.5 * mean for s in slopes)

    @property
    def slope(self) -> float:
        """Bytes a step from first to last point."""
        return (self.values[-1] - self.values[0]) / max(1, self.steps[-1] - self.steps[0])

    @property
    def flat(self) -> bool:
        """Whether it stays within a tenth of its largest value."""
        return max(self.values) - min(self.values) <= LEAST_RISE * max(self.values)


def of(evidence: Evidence, figure: Callable[[Sample], int | None]) -> tuple[Series, ...]:
    """Series with at least three points, by label and rank."""
    groups: dict[tuple[str, int | None], list[tuple[int, int, str]]] = {}
    for number, sample in enumerate(evidence.samples):
        value = figure(sample)
        if value is not None:
            groups.setdefault((sample.label, sample.rank), []).append((sample.step if sample.step is not None else number, value, sample.where))
    out = []
    for (label, _), points in groups.items():
        if len(points) >= LEAST_POINTS:
            out.append(Series(label, points[-1][2], tuple(p[0] for p in points), tuple(p[1] for p in points)))
    return tuple(out)


def allocated(evidence: Evidence) -> tuple[Series, ...]:
    """Series of allocated bytes (not of peaks)."""
    return of(evidence, lambda s: s.allocated_bytes)


def reserved(evidence: Evidence) -> tuple[Series, ...]:
    """Series of reserved bytes."""
    return of(evidence, lambda s: s.reserved_bytes if s.reserved_bytes is not None else s.peak_reserved_bytes)


def peaks(evidence: Evidence) -> tuple[Series, ...]:
    """Series of peak allocated bytes."""
    return of(evidence, lambda s: s.peak_allocated_bytes)
