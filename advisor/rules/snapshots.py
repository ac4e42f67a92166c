"""What a memory snapshot shows, as marks for the causes: which part fills the peak, what grew, what is held twice, what no block can use.

The lines are written by :mod:`advisor.reading.snapshot` (telling, growth, shapes) from torch's own record of every block
(``torch.cuda.memory._snapshot``, c10 ``CUDACachingAllocator`` trace): they are measured, not estimated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules.rule import Mark
from advisor.run import Run
from advisor.units import MIB, read_size, show

SOURCE = "torch.cuda.memory._snapshot: each block with the frames that allocated it"
SOME, MOST = 0.3, 0.5  # of the peak
LEAST_GROWTH = 64 * MIB
KEPT_BY_A_GRAPH = frozenset({"activations", "attention", "logits"})  # parts that only a graph keeps beyond their step
STRANDED, POOLED = 0.08, 0.08  # of what the process holds
_PLACE = pattern(r"^snapshot (peak|holds): ([\d.]+ \w+) from (\S+) \(([\w-]+), (\d+) blocks\)")
_WHOLE = pattern(r"^snapshot (peak|holds): ([\d.]+ \w+) (?:in all|at the end)")
_GROWN = pattern(r"^snapshot growth: \+([\d.]+ \w+) from (\S+) \(([\w-]+)\)")
_GROWN_ALL = pattern(r"^snapshot growth: \+([\d.]+ \w+) in all")
_HOLES = pattern(r"^snapshot fragmentation: ([\d.]+ \w+) free in (\d+) holes")
_POOLS = pattern(r"^snapshot private pools: ([\d.]+ \w+) in (\d+)")
_DUPLICATES = pattern(r"^snapshot duplicates: (.+)$")


def _lines(evidence: Evidence, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for line in evidence.lines:
        if line.text.startswith("snapshot ") and (found := pattern.match(line.text)) is not None:
            yield line.where, found


def _bytes(text: str) -> int:
    size = read_size(text)
    return size.bytes if size is not None else 0


def _whole(evidence: Evidence) -> tuple[str, int]:
    """``peak`` where a trace shows one, else what is held at the end, and its bytes."""
    found = {m[1]: _bytes(m[2]) for _, m in _lines(evidence, _WHOLE)}
    kind = "peak" if found.get("peak") else "holds"
    return kind, found.get(kind, 0)


def part(evidence: Evidence, *parts: str) -> tuple[float, str]:
    """The share of the peak that these parts' places hold, and the largest place with its bytes."""
    kind, whole = _whole(evidence)
    places = [(_bytes(m[2]), m[3]) for _, m in _lines(evidence, _PLACE) if m[1] == kind and m[4] in parts]
    if not places or not whole:
        return 0.0, ""
    size, site = max(places)
    return sum(b for b, _ in places) / whole, f"{show(size)} from {site}"


def part_marks(cause: str, *parts: str, weights: tuple[float, float] = (1.2, 1.5), unless: Callable[[Run, Evidence], bool] | None = None) -> tuple[Mark, Mark]:
    """Two marks: the parts are at least :data:`SOME` of the snapshot's peak, and at least :data:`MOST`; each adds its weight."""

    def at_least(least: float) -> Callable[[Run, Evidence], str | None]:
        def when(run: Run, evidence: Evidence) -> str | None:
            share, largest = part(evidence, *parts)
            if share < least or (unless is not None and unless(run, evidence)):
                return None
            return f"the snapshot shows {share:.0%} of the peak in {' and '.join(parts)}: {largest}"

        return when

    return (
        Mark(f"{cause}-snapshot-some", weights[0], "much of the snapshot's peak", SOURCE, when=at_least(SOME)),
        Mark(f"{cause}-snapshot-most", weights[1], "most of the snapshot's peak", SOURCE, when=at_least(MOST)),
    )


def grown(evidence: Evidence, *, by_graph: bool) -> str | None:
    """Growth between two snapshots in places whose tensors only a graph keeps, or in the other ones; ``None`` where that is not most of it."""
    places = [(_bytes(m[1]), m[2], m[3]) for _, m in _lines(evidence, _GROWN)]
    of_graph = sum(size for size, _, what in places if what in KEPT_BY_A_GRAPH)
    of_objects = sum(size for size, _, what in places if what not in KEPT_BY_A_GRAPH)
    mine, other = (of_graph, of_objects) if by_graph else (of_objects, of_graph)
    if mine < LEAST_GROWTH or mine < other:
        return None
    size, site, _ = max(p for p in places if (p[2] in KEPT_BY_A_GRAPH) == by_graph)
    return f"between the snapshots {show(size)} more are held from {site}"


def grown_at_all(evidence: Evidence) -> str | None:
    """The sentence where more is held at the later snapshot."""
    return next((f"between the snapshots {m[1]} more are held" for _, m in _lines(evidence, _GROWN_ALL) if _bytes(m[1]) >= LEAST_GROWTH), None)


def duplicates(evidence: Evidence) -> str | None:
    """What the shapes of the blocks say of parameters that are held twice."""
    return next(
        (f"the snapshot shows that {m[1]}" if m[1].startswith("the ") else f"the snapshot shows {m[1]}" for _, m in _lines(evidence, _DUPLICATES)), None
    )


def holes(evidence: Evidence) -> str | None:
    """What partly used segments strand, where it is a noticeable share."""
    held = next((_bytes(m[2]) for _, m in _lines(evidence, _WHOLE) if m[1] == "holds"), 0)
    for _, m in _lines(evidence, _HOLES):
        if held and _bytes(m[1]) >= STRANDED * held:
            return f"the snapshot shows {m[1]} free in {m[2]} holes of segments that are in use"
    return None


def pools(evidence: Evidence) -> str | None:
    """What private pools hold, where it is a noticeable share."""
    held = next((_bytes(m[2]) for _, m in _lines(evidence, _WHOLE) if m[1] == "holds"), 0)
    for _, m in _lines(evidence, _POOLS):
        if _bytes(m[1]) >= max(256 * MIB, POOLED * held):
            return f"the snapshot shows {m[1]} in {m[2]} private pools"
    return None
