"""Data points that people print beside a setting: a table of batch and peak memory, ``bs=1: 21.3 GB, bs=2: 30.1 GB``.

A point is a value of one setting and the memory that a run with it took. Points are of one series where everything else that is named with
them is equal. What counts batches or steps as they go by is no setting: only names that say a size are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from advisor.evidence import Evidence, Line
from advisor.reading.pattern import pattern
from advisor.units import GIB, MIB

LONGEST = 600  # characters of a line
MOST = 1_000  # lines that are looked at
ROWS = 60  # of a table
_UNIT = r"(GiB|GB|MiB|MB)"
_BATCH = (
    r"(?:per[-_ ](?:device|gpu)[-_ ](?:train[-_ ])?|(?:train|micro|mini)[-_ ]?)?batch[-_ ]?size|(?:per[-_ ](?:device|gpu)[-_ ]|micro[-_ ]?)batch|[mu]?bs[zs]?"
)
_LENGTH = r"(?:max[-_ ])?(?:seq(?:uence)?|context)[-_ ]?len(?:gth)?|max[-_ ](?:seq[-_ ])?len(?:gth)?|cutoff[-_ ]len|seq(?:uence)?|ctx|context"
_NAMED = (("batch.micro_batch", _BATCH), ("batch.seq_len", _LENGTH))
_INLINE = tuple(
    (
        path,
        pattern(
            rf"(?<![\w.-])(?:{name})\s{{0,2}}(?:[=:]|of|is)?\s{{0,2}}(\d{{1,3}}(?:,\d{{3}})+|\d{{1,7}})(k)?(?![\w./]|,\d)[^\n\d;|]{{0,30}}?"
            rf"(?<![\w.])(\d{{1,6}}(?:\.\d{{1,3}})?)\s?{_UNIT}(?![\w/])(?!\s?(?:cards?|gpus?|a100|h100|of|free|left|total|RAM|swap|disk)\b)",
            re.IGNORECASE,
        ),
    )
    for path, name in _NAMED
)
_ALSO = tuple((path, pattern(rf"(?<![\w.-])(?:{name})\s{{0,2}}[=:]?\s{{0,2}}(\d{{1,7}})(k)?\b", re.IGNORECASE)) for path, name in _NAMED)
_NO_FIGURE = pattern(r"\bOOM|out of memory|\bfree\b|\bcapacity\b|\bexpect\w*|\bwould\b|ried to allocate|\bestimat\w+", re.IGNORECASE)
_SETTING = pattern(r"(?<![\w.])([A-Za-z_][\w.-]{1,60})\s?=\s?([\w./-]{1,60})")
_COLUMN = tuple(
    (path, pattern(rf"^\W{{0,3}}(?:{name})\W{{0,3}}$|^\W{{0,3}}batch\W{{0,3}}$" if path == "batch.micro_batch" else rf"^\W{{0,3}}(?:{name})\W{{0,3}}$", re.I))
    for path, name in _NAMED
)
_HELD = pattern(rf"\b(?:peak|mem(?:ory)?|vram|alloc\w*|reserved)\b|\b{_UNIT}\b", re.IGNORECASE)
_OF_HEAD = pattern(rf"\b{_UNIT}\b", re.IGNORECASE)
_MEASURED = pattern(r"time|sec|loss|tok|s/it|it/s|speed|throughput|ppl|acc|util|%|tps|flops|note|ok\b|result|status", re.IGNORECASE)
_NUMBER = pattern(rf"^\W{{0,3}}(\d{{1,3}}(?:,\d{{3}})+|\d{{1,7}}(?:\.\d{{1,3}})?)\s?(k)?\s?{_UNIT}?\W{{0,3}}$", re.IGNORECASE)
_PLAIN = pattern(  # words that tell no two runs apart
    r"\b(?:a|an|the|and|then|or|of|at|to|in|on|for|is|it|its|i|we|this|that|with|when|while|us(?:e|es|ed|ing)|takes?|took|needs?|needed|gets?|got|peak|"
    r"memory|vram|gpu|about|around|only|just|runs?|ran|was|were|be|but|now|here|also|so|from|by|as|one)\b"
)
_WORD = pattern(r"[a-z][\w-]*")
_CELLS = pattern(r"\s*\|\s*|\t+|\s{2,}")
_RULE = pattern(r"^[\s|:+=-]+$")


class Point(NamedTuple):
    """A value of a setting and the memory of the run with it, bytes."""

    value: int
    bytes: int
    where: str


class Series(NamedTuple):
    """The points of one setting, by its value; all else that is named is equal."""

    setting: str
    points: tuple[Point, ...]


def series(evidence: Evidence) -> tuple[Series, ...]:
    """The series of at least two values that the lines print. Found once."""
    if "series" not in evidence.noted:
        lines = [line for line in evidence.lines[:MOST] if len(line.text) <= LONGEST]
        evidence.noted["series"] = tuple(_grouped([*_inline(lines), *_tables(lines)]))
    found: tuple[Series, ...] = evidence.noted["series"]
    return found


_Found = tuple[str, str, Point]  # the setting, what else was equal, the point


def _inline(lines: Sequence[Line]) -> Iterator[_Found]:
    for line in lines:
        if "=" not in line.text and not any(char.isdigit() for char in line.text):
            continue
        for path, named in _INLINE:
            past = 0
            for m in named.finditer(line.text):
                if _NO_FIGURE.search(m[0]):
                    continue
                start = max(line.text.rfind(mark, 0, m.start()) for mark in (";", ", ", "|", ". "))
                around = line.text[start + 1 : m.end()]
                others = sorted(f"{p}={o[1]}" for p, also in _ALSO if p != path for o in also.finditer(around))
                others += sorted(f"{s[1]}={s[2]}" for s in _SETTING.finditer(around) if not m.start() <= start + 1 + s.start() < m.end())
                source = line.where.rpartition(":")[0]
                # "LoRA bs=1" and "full bs=2" are two runs
                said = " ".join(_WORD.findall(_PLAIN.sub(" ", line.text[max(start + 1, past) : m.start()].lower())))
                past = m.end()
                yield path, f"{source} {others} {said}", Point(_whole(m[1], m[2]), _bytes(m[3], m[4]), line.where)


def _tables(lines: Sequence[Line]) -> Iterator[_Found]:
    for index, line in enumerate(lines):
        cells = _cells(line.text)
        if not 2 <= len(cells) <= 12 or _HELD.search(line.text) is None:
            continue
        held = next((n for n, cell in enumerate(cells) if _HELD.search(cell)), None)
        for path, named in _COLUMN:
            column = next((n for n, cell in enumerate(cells) if named.match(cell)), None)
            if column is not None and held is not None and held != column:
                yield from _rows(path, cells, column, held, lines[index + 1 : index + 1 + ROWS])


def _rows(path: str, head: list[str], column: int, held: int, lines: Sequence[Line]) -> Iterator[_Found]:
    unit = m[1] if (m := _OF_HEAD.search(head[held])) is not None else None
    kept = [n for n, cell in enumerate(head) if n not in (column, held) and not _MEASURED.search(cell) and not _HELD.search(cell)]
    for line in lines:
        if _RULE.match(line.text):
            continue
        cells = _cells(line.text)
        if len(cells) != len(head) or (value := _NUMBER.match(cells[column])) is None:
            return
        amount = _NUMBER.match(cells[held])
        if amount is None or value[3] or "." in value[1] or not (amount[3] or unit):
            continue  # "OOM": a row without a figure
        yield (
            path,
            f"{head} {[cells[n] for n in kept]}",
            Point(_whole(value[1], value[2]), _bytes(amount[1].replace(",", ""), amount[3] or unit or ""), line.where),
        )


def _grouped(found: Sequence[_Found]) -> Iterator[Series]:
    groups: dict[tuple[str, str], dict[int, Point]] = {}
    twice: set[tuple[str, str]] = set()
    for path, equal, point in found:
        group = groups.setdefault((path, equal), {})
        if group.setdefault(point.value, point).bytes != point.bytes:
            twice.add((path, equal))  # two figures for one value: something else differs
    for key, group in groups.items():
        points = tuple(group[value] for value in sorted(group) if value > 0)
        if len(points) >= 2 and key not in twice and not (len(points) > 2 and _counts(points)):
            yield Series(key[0], points)


def _counts(points: Sequence[Point]) -> bool:
    """Whether the values are 1, 2, 3, ...: a count of batches as they go by, rather than sizes that were tried."""
    return [point.value for point in points] in ([*range(len(points))], [*range(1, len(points) + 1)])


def _cells(text: str) -> list[str]:
    return [cell for cell in _CELLS.split(text.strip().strip("|").strip()) if cell]


def _whole(number: str, thousands: str | None) -> int:
    return int(number.replace(",", "")) * (1024 if thousands else 1)


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * (GIB if unit[:1] in "Gg" else MIB))
