"""Makes ``knowledge/errors.yaml``: measured over estimated by kind of run, from the public measurements.

``python -m advisor.accuracy.error_table`` writes the table and prints how often the ranges hold runs of a source that was left out. A kind
counts where it has rows of at least two sources, or many of one for a narrow kind; a source weighs the root of its number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import yaml

from advisor import knowledge
from advisor.accuracy.measured import TOTAL_OF, load
from advisor.arithmetic import CannotEstimate, estimate
from advisor.arithmetic.interval import TOTALS, kinds
from advisor.run import resolve

SHARE = 0.05  # left out at each end
LEAST_ROWS = 6
MANY_ROWS = 15
HEADER = "# Measured over estimated, by total and kind of run (advisor/accuracy/error_table.py makes this; do not edit).\n"


@dataclass(frozen=True)
class Row:
    """One measured run: measured over estimated, and the kinds it belongs to."""

    total: str
    source: str
    kinds: tuple[str, ...]
    ratio: float


def rows() -> list[Row]:
    """All measured runs that can be estimated, ranges aside."""
    out = []
    for m in load([knowledge.path("measurements")]):
        if m.job is None or m.gib is None:
            continue
        try:
            run = resolve(m.job)
            expected = estimate(run).expected_totals()[TOTAL_OF[m.metric]].expected
        except CannotEstimate:
            continue
        if expected:
            out.append(Row(TOTAL_OF[m.metric], m.source, kinds(run), m.gib * 2**30 / expected))
    return out


def table(found: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The ranges, by total and kind. ``device_used`` and ``max_reserved`` help each other out: both are beyond what is allocated."""
    out: dict[str, dict[str, Any]] = {}
    for total in TOTALS:
        own = [r for r in found if r.total == total]
        related = own if total in ("max_allocated", "host") else [r for r in found if r.total in ("max_reserved", "device_used")]
        for chosen in (own, related):
            for kind in {k for r in chosen for k in r.kinds}:
                members = [r for r in chosen if kind in r.kinds]
                sources = {r.source for r in members}
                if kind in out.get(total, {}) or len(members) < LEAST_ROWS or (len(sources) < 2 and not ("version" in kind and len(members) >= MANY_ROWS)):
                    continue
                low, high = _range(members)
                out.setdefault(total, {})[kind] = {"low": round(low, 4), "high": round(high, 4), "rows": len(members), "sources": len(sources)}
    return {total: dict(sorted(kept.items())) for total, kept in out.items()}


def _range(members: Iterable[Row]) -> tuple[float, float]:
    """Weighted quantiles, widened to hold an exact estimate."""
    listed = sorted(members, key=lambda r: r.ratio)
    count: dict[str, int] = {}
    for r in listed:
        count[r.source] = count.get(r.source, 0) + 1
    weights = [count[r.source] ** -0.5 for r in listed]
    whole = sum(weights)
    passed, low, high = 0.0, listed[0].ratio, listed[-1].ratio
    for r, w in zip(listed, weights, strict=True):
        if passed / whole <= SHARE:
            low = r.ratio
        passed += w
        if passed / whole >= 1 - SHARE:
            high = r.ratio
            break
    return min(low, 1.0), max(high, 1.0)


def left_out(found: Sequence[Row]) -> tuple[float, float]:
    """How often the ranges of the other sources hold a source's rows (each source the same weight), and their median width."""
    held, widths = [], []
    for source in {r.source for r in found}:
        others = table([r for r in found if r.source != source])
        inside = []
        for r in (r for r in found if r.source == source):
            kind = next((k for k in r.kinds if k in others.get(r.total, {})), None)
            if kind is None:
                continue
            low, high = others[r.total][kind]["low"], others[r.total][kind]["high"]
            inside.append(low <= r.ratio <= high)
            widths.append(high - low)
        if inside:
            held.append(sum(inside) / len(inside))
    return sum(held) / max(1, len(held)), median(widths) if widths else 0.0


def main() -> None:
    """Write the table."""
    found = rows()
    made = table(found)
    knowledge.path("errors.yaml").write_text(HEADER + yaml.safe_dump(made, sort_keys=False), encoding="utf-8")
    coverage, width = left_out(found)
    print(f"{len(found)} rows of {len({r.source for r in found})} sources; left out, held {coverage:.0%}, median width {width:.0%}")


if __name__ == "__main__":
    main()
