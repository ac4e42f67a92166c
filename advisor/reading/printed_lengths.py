"""Lengths of the samples as tools print them: an answer of numpy's percentile, a table of pandas' describe.

Sources: numpy ``percentile(a, q)`` (one figure for each of q, 100 is the longest); pandas ``Series.describe`` (count, mean, std, min, 25%, 50%, 75%, max,
one a line).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.evidence import Fact
from advisor.reading.lines import Excerpt
from advisor.reading.merge import PROSE, Ranked
from advisor.reading.pattern import pattern as lazily

BEHIND = 4  # lines under a call in which its answer stands
LONGEST = 1 << 24  # tokens
_CALL = lazily(r"percentile\((.{0,160}),\s*\[([\d.,\s]{1,80})\]\s*\)")
_OF_LENGTHS = lazily(r"len|token|input_ids", re.IGNORECASE)
_ANSWER = lazily(r"^\s*(?:Out ?\[\d+\]: ?)?(?:array\()?\[([\d.,e+\s]{1,200})\]\)?\s*$")
_ROW = lazily(r"^\s*(count|mean|std|min|25%|50%|75%|9\d%|99%|max)\s{1,20}(\d{1,12}(?:\.\d{1,9})?(?:e\+\d{1,2})?)\s*$")
_QUANTILES = {50.0: "p50", 95.0: "p95", 99.0: "p99", 100.0: "max"}
_ROWS = {"50%": "p50", "95%": "p95", "99%": "p99", "max": "max"}


def facts_of(text: Excerpt) -> Iterator[Ranked]:
    """The spread of lengths that one text prints: the first that names two quantiles at least."""
    for found in (*_percentiles(text), *_described(text)):
        if len(found) >= 2:
            yield from (Ranked(Fact(f"batch.lengths.{name}", value, "read", where, why="printed", text=line), PROSE) for name, value, where, line in found)
            return


_Found = tuple[str, int, str, str]  # quantile, tokens, place, line


def _percentiles(text: Excerpt) -> Iterator[list[_Found]]:
    lines = text.lines
    for index, line in enumerate(lines):
        if "percentile(" not in line.text or (call := _CALL.search(line.text)) is None or not _OF_LENGTHS.search(call[1]):
            continue
        asked = [float(q) for q in re.findall(r"\d+(?:\.\d+)?", call[2])]
        for answer in lines[index + 1 : index + 1 + BEHIND]:
            if (m := _ANSWER.match(answer.text)) is not None:
                given = [float(v) for v in re.findall(r"\d+(?:\.\d*)?(?:e\+\d+)?", m[1])]
                if len(given) == len(asked):
                    pairs = zip(asked, given, strict=True)
                    yield [(_QUANTILES[q], round(v), text.where(answer), answer.text.strip()[:200]) for q, v in pairs if q in _QUANTILES and 1 <= v <= LONGEST]
                break


def _described(text: Excerpt) -> Iterator[list[_Found]]:
    rows: list[_Found] = []
    named, seen = False, ""
    for line in text.lines:
        if (m := _ROW.match(line.text)) is None:
            if len(rows) >= 2 and named:
                yield rows
            rows, seen = [], line.text
            continue
        if m[1] == "count":
            rows, named = [], _OF_LENGTHS.search(seen) is not None
        value = float(m[2])
        if m[1] in _ROWS and 1 <= value <= LONGEST:
            rows.append((_ROWS[m[1]], round(value), text.where(line), line.text.strip()[:200]))
    if len(rows) >= 2 and named:
        yield rows
