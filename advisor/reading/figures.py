"""Memory figures as people print them: with a noun before them, with or without a unit, in sentences, and as columns under a heading.

A unit that is not printed follows from the size: scripts divide bytes by 1024² or 1024³, and no training step holds less than some tens of
MiB or more than a few TiB. So 17002.9 is MiB, 3.41 is GiB, 1923082240 is bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from advisor.evidence import Sample
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern as lazily
from advisor.units import GIB, MIB

F = r"(-?\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)"
UNIT = r"(GiB|GB|MiB|MB|G|M)?"
BARE_MIB = (2048.0, 1_000_000.0)  # a figure between them without a unit: 2 TiB if it were GiB, less than a MiB if it were bytes
LEAST_ROWS = 4  # rows of bare numbers that make a column

_AMOUNT = rf"{F}(?!\*\*|,\d)\s?{UNIT}\b(?!\s?%|\*\*)"
_NOUN = lazily(
    r"(?P<peak>max(?:imum)?|peak)?[\s_]{0,3}(?:gpu|cuda)?[\s_]{0,3}(?:mem(?:ory)?)?[\s_]{0,3}(?P<what>allocated|alloc\b|reserved|active|cached)"
    r"(?P<after>[\s_]{0,3}(?:peak|max))?",
    re.IGNORECASE,
)
_COUNTED = r"(?:cuda|gpu|device|rank|card|npu|xpu|step|iter(?:ation)?|epoch|batch)s?[\s:#=]{0,2}"  # what numbers are of that count cards and steps
_BEHIND = lazily(rf"(?:\b{_COUNTED}\d{{1,7}}\b(?!\.\d)|(?!\b{_COUNTED}\d{{1,7}}\b(?!\.\d))[^\d|,;%]|\b2\*\*30\b){{0,50}}?{_AMOUNT}", re.IGNORECASE)
_PEAK = lazily(rf"\bpeak\b(?:\s+(?:gpu|cuda))?(?:\s+mem\w*)?(?:\s+usage)?\s*[:=]?\s*{F}\s?(GiB|GB|MiB|MB)\b", re.IGNORECASE)
# "gpu mem 7.6 GB", "GPU memory: ~9GB", "mem 66.90 GiB", "vram used 9.1 GB", "memory usage = 3 GB": what a card shows, kind not said
_CARD = lazily(
    rf"(?<![\w/-])(?:(?:gpu|cuda|device)[\s_-]{{0,2}}(?:mem(?:ory)?|ram)|mem(?:ory)?|vram)(?:[\s_-]{{0,2}}(?:usage|used|use|consumption|footprint))?"
    rf"['\"]?\s{{0,4}}(?:is|was|at|of)?\s{{0,2}}[:=]?\s{{0,4}}[~≈]?\s?{F}\s?(GiB|GB|MiB|MB|G|M)\b",
    re.IGNORECASE,
)
_SIZE = lazily(r"\b(?:max(?:imum)?|total|free|available|usable|host|cpu|system|virtual)[\s_-]{0,2}$", re.IGNORECASE)  # what a card has, or is of the host
_HEADING = lazily(r"(?<![a-z])(?:gpu|cuda|vram|mem(?:ory)?|alloc(?:ated)?|reserved|nvidia-smi)(?![a-z])", re.IGNORECASE)
_OF_MEMORY = lazily(r"(?<![a-z])(?:vram|mem(?:ory)?|alloc(?:ated)?|reserved|nvidia-smi)(?![a-z])", re.IGNORECASE)
_ROW = lazily(  # "100  1834", "step 100: 1834", "micro batch 20   22.5 GiB"
    r"^[\s|]*((?:global |micro |mini |training )?(?:step|batch|iter(?:ation)?|epoch|update|trial|round)s?[ :#=]{1,4})?"
    r"(\d{1,9})(?:[\s,;:|]|->|→){1,8}(\d{1,12}(?:\.\d{1,9})?)\s*(GiB|GB|MiB|MB)?[\s|]*$",
    re.IGNORECASE,
)


class Found(NamedTuple):
    """A figure: allocated, reserved or ``card`` (not said which), whether a peak, bytes."""

    what: str
    peak: bool
    bytes: int


def figures(content: str) -> list[Found]:
    """The figures of one line; none where it prints none."""
    found: dict[tuple[str, bool], int] = {}
    unit_of_line = re.search(r"\d\s?(GiB|GB|MiB|MB)\b|[(_](gib|gb|mib|mb)\b", content, re.IGNORECASE)
    unit = (unit_of_line[1] or unit_of_line[2]) if unit_of_line is not None else None
    nouns = list(_NOUN.finditer(content))[:12]
    for number, noun in enumerate(nouns):
        behind = content[noun.end() : min(noun.end() + 70, nouns[number + 1].start() if number + 1 < len(nouns) else len(content))]
        own = re.match(r"[\s_]*[(\[]?(gib|gb|mib|mb)\b", behind, re.IGNORECASE)
        # up to the figure only words: "at the start of the step  2.11 GiB", "(gib)': 9.8", "() = 75.1 GiB", "on cuda:0 36.42 GiB"
        amount = _BEHIND.match(behind)
        if amount is None:
            continue
        value = bytes_of(amount[1], amount[2] or (own[1] if own else None) or unit)
        if value is not None:
            found.setdefault((_same(noun["what"].lower()), bool(noun["peak"] or noun["after"])), value)
    if set(found) <= {("allocated", False)} and (m := _PEAK.search(content)) is not None and (value := bytes_of(m[1], m[2])) is not None:
        found["allocated", True] = value
        before = re.search(rf"before step\s+{F}\s?(GiB|GB|MiB|MB)", content, re.IGNORECASE)
        if before is not None and (earlier := bytes_of(before[1], before[2])) is not None:
            found["allocated", False] = earlier
    if not found and (m := _CARD.search(content)) is not None and not _SIZE.search(content[: m.start()]) and (value := bytes_of(m[1], m[2])) is not None:
        found["card", False] = value
    return [Found(what, peak, value) for (what, peak), value in found.items()]


def _same(what: str) -> str:
    return {"cached": "reserved", "active": "allocated", "alloc": "allocated"}.get(what, what)


def bytes_of(number: str, unit: str | None) -> int | None:
    """A figure with its unit; GB of a training log is GiB (every framework divides by 1024). Without a unit: what the size can be."""
    value = float(number)
    if value < 0:
        return None
    if unit is not None:
        return round(value * {"gib": GIB, "gb": GIB, "g": GIB, "mib": MIB, "mb": MIB, "m": MIB}[unit.lower()])
    if BARE_MIB[0] <= value < BARE_MIB[1]:
        return round(value * MIB)
    if "." in number and value < BARE_MIB[0]:
        return round(value * GIB)
    return round(value) if value > MIB else None


def columns(text: Excerpt) -> Iterator[Sample]:
    """Rows of a step and a bare number under a line that speaks of memory: ``step  mem`` above ``0 1834``."""
    yield from _named_columns(text)
    rows: list[_Row] = []
    told: str | None = None
    for line in text.lines:
        row = _ROW.match(line.text)
        # "Using device: cuda" above "epoch 1: 0.69": losses; a row that names its step needs a heading or a unit of memory
        if row is not None and told is not None and (row[1] is None or row[4] is not None or _OF_MEMORY.search(told)):
            rows.append((text.where(line), int(row[2]), row[3], row[4], line.rank))
            continue
        yield from _column(told, rows)
        rows = []
        told = line.text.strip()[:100] if _HEADING.search(line.text) and len(line.text) < 200 else None
    yield from _column(told, rows)


_CELL = lazily(rf"^{F}(GiB|GB|MiB|MB|G|M)$", re.IGNORECASE)
_MEMORY = lazily(r"^(?:gpu|cuda|v?ram)?_?mem(?:ory)?(?:_(?:gib|gb|mib|mb|used))?$|^gpu_mem$|^vram$", re.IGNORECASE)


def _named_columns(text: Excerpt) -> Iterator[Sample]:
    """Tables whose heading names a memory column, as ultralytics prints them (``Epoch  GPU_mem  box_loss``: memory_reserved over 1e9)."""
    column, width, label = -1, 0, ""
    for number, line in enumerate(text.lines):
        cells = line.text.split()
        named = next((i for i, cell in enumerate(cells) if _MEMORY.search(cell)), None) if 2 <= len(cells) <= 20 else None
        if named is not None:
            column, width, label = named, len(cells), line.text.strip()[:100]
        elif column >= 0 and len(cells) >= width and (m := _CELL.match(cells[column])) is not None:
            step = re.match(r"(\d{1,9})(?:/\d{1,9})?$", cells[0])
            yield Sample(text.where(line), label, int(step[1]) if step else number, line.rank, device_used_bytes=bytes_of(m[1], m[2]))


_Row = tuple[str, int, str, str | None, int | None]  # place, count, figure, unit, rank


def _column(told: str | None, rows: list[_Row]) -> Iterator[Sample]:
    if told is None or len(rows) < LEAST_ROWS or any(b[1] <= a[1] for a, b in pairwise(rows)):
        return
    largest = max(float(number) for _, _, number, _, _ in rows)
    scale = GIB if largest < 256 else MIB if largest < BARE_MIB[1] else 1
    for where, step, number, unit, rank in rows:
        value = bytes_of(number, unit) if unit else round(float(number) * scale)
        yield Sample(where, told, step, rank, allocated_bytes=value)
