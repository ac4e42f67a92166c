"""Makes ``knowledge/errors.yaml``: how far public measurements lie outside what the run itself leaves open, by total and kind of run.

``python -m advisor.accuracy.error_table`` writes the table and prints how often the ranges hold runs of a source that was left out. Rows of one
source are alike, so each source weighs the same. A kind of few sources is drawn towards the wider kind it belongs to, which counts as a third of
a source: what one source shows of its own rows is less than what the next source will show. Where the version of the modelling code is not known,
or a kind joins several, the next source may run other code than any that was seen, and the wider kind counts as a whole source. A source of few
rows shows less of a kind than one of many: a row is a tenth of a source. These numbers are chosen, not derived: of a source that is left out the
ranges of the others then hold 87 % of the rows (82 % with neither), and of the rows in tests/apart, which no range is made from, all that they
should; a fifth would hold as much of the first in narrower ranges, and misses two of the second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import yaml
from msgspec import Struct

from advisor import knowledge
from advisor.accuracy.measured import TOTAL_OF, load
from advisor.arithmetic import CannotEstimate, estimate
from advisor.arithmetic.interval import TOTALS, kinds, structural
from advisor.ledger import Interval
from advisor.run import resolve
from advisor.units import GIB

SHARE = 0.02  # of the sources' weight, left out at each end
PARENT, PARENT_OF_UNKNOWN = 1 / 3, 1.0  # sources that the wider kind counts for; where the version of the modelling code is not known
ROWS = 10  # rows from which a source counts whole in its kind
HEADER = "# Measured over estimated, by total and kind of run (advisor/accuracy/error_table.py makes this; do not edit).\n"


class Row(Struct, frozen=True):
    """One measured run: measured over estimated, and the kinds it belongs to."""

    total: str
    source: str
    kinds: tuple[str, ...]
    ratio: float
    open: float = 0.0  # width of the range that the run itself leaves open, of the estimate


def rows() -> list[Row]:
    """All measured runs that can be estimated, ranges aside."""
    out = []
    for m in load([knowledge.path("measurements")]):
        if m.job is None:
            continue
        run = resolve(m.job)
        measured = m.gib * GIB if m.gib is not None else run.usable[0] if run.usable else 0  # a run that ran out needed at least the card
        try:
            range_ = structural(run, estimate(run), estimate)[TOTAL_OF[m.metric]]
        except CannotEstimate:
            continue
        if range_.expected and (m.gib is not None or measured > range_.high):
            out.append(Row(TOTAL_OF[m.metric], m.source, kinds(run), beyond(measured, range_), (range_.high - range_.low) / range_.expected))
    return out


def beyond(measured: float, range_: Interval) -> float:
    """How far a figure lies outside the range that the run itself leaves open: 1 within, else measured over the end that is nearer."""
    if measured < range_.low:
        return measured / range_.low
    return measured / range_.high if measured > range_.high else 1.0


def table(found: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The ranges, by total and kind. ``device_used`` and ``max_reserved`` help each other out: both are beyond what is allocated."""
    out: dict[str, dict[str, Any]] = {}
    chains = sorted({r.kinds for r in found})
    for total in TOTALS:
        own = [r for r in found if r.total == total]
        related = own if total in ("max_allocated", "host") else [r for r in found if r.total in ("max_reserved", "device_used")]
        if not own:
            continue
        kept: dict[str, dict[str, Any]] = {}
        for chain in chains:
            wider: list[dict[str, Any]] = []
            for kind in reversed(chain):
                members = [r for r in own if kind in r.kinds] or [r for r in related if kind in r.kinds]
                if members and kind not in kept:
                    sources = len({r.source for r in members})
                    parent = next((entry for entry in wider if entry["sources"] > sources), None)  # one of the same sources knows no more
                    kept[kind] = _entry(members if wider else related, parent, PARENT if "of a known version" in kind else PARENT_OF_UNKNOWN)
                if kind in kept:
                    wider.insert(0, kept[kind])
        out[total] = dict(sorted(kept.items()))
    return out


def _entry(members: Sequence[Row], parent: dict[str, Any] | None, weight: float) -> dict[str, Any]:
    count = Counter(r.source for r in members)
    low, high = _range(members)
    if parent is not None:
        whole = sum(min(1.0, rows / ROWS) for rows in count.values())
        low, high = min(low, _towards(low, parent["low"], whole, weight)), max(high, _towards(high, parent["high"], whole, weight))
    return {"low": math.floor(low * 1e4) / 1e4, "high": math.ceil(high * 1e4) / 1e4, "rows": len(members), "sources": len(count)}


def _towards(own: float, parent: float, sources: float, weight: float) -> float:
    return math.exp((sources * math.log(own) + weight * math.log(parent)) / (sources + weight))


def _range(members: Sequence[Row]) -> tuple[float, float]:
    """Quantiles with the same weight for each source, widened to hold an exact estimate."""
    count = Counter(r.source for r in members)
    listed = sorted((r.ratio, 1 / count[r.source]) for r in members)
    whole = sum(weight for _, weight in listed)
    passed, low, high = 0.0, listed[0][0], listed[-1][0]
    for ratio, weight in listed:
        if passed / whole <= SHARE:
            low = ratio
        passed += weight
        if passed / whole >= 1 - SHARE:
            high = ratio
            break
    return min(low, 1.0), max(high, 1.0)


def left_out(found: Sequence[Row]) -> dict[str, float]:
    """How often the ranges of the other sources hold a source's rows: of all rows, and of each source with the same weight; and the median width."""
    held, each, widths = [], [], []
    for source in sorted({r.source for r in found}):
        others = table([r for r in found if r.source != source])
        inside = []
        for r in (r for r in found if r.source == source):
            known = others.get(r.total, {})
            kind = next((k for k in r.kinds if k in known), None)
            low, high = (known[kind]["low"], known[kind]["high"]) if kind else (1.0, 1.0)
            inside.append(low <= r.ratio <= high)
            widths.append(high - low + r.open)
        held += inside
        each.append(sum(inside) / len(inside))
    return {"rows": sum(held) / max(1, len(held)), "sources": sum(each) / max(1, len(each)), "width": median(widths) if widths else 0.0}


def main() -> None:
    """Write the table."""
    found = rows()
    made = table(found)
    knowledge.path("errors.yaml").write_text(HEADER + yaml.safe_dump(made, sort_keys=False), encoding="utf-8")
    out = left_out(found)
    print(f"{len(found)} rows of {len({r.source for r in found})} sources; left out in turn, {out['rows']:.0%} held, median width {out['width']:.0%}")


if __name__ == "__main__":
    main()
