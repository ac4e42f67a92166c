"""The lines that rules look at: one of each template, warnings and figures first, progress at its start and its end; bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from advisor.evidence import Line
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.pattern import pattern as lazily
from advisor.reading.told import sentences
from advisor.reading.tracebacks import frame_of

LINES = 3_000
WIDTH = 400
PARAGRAPH = 4_000  # characters of a line of which sentences are looked at
_LOUD = lazily(
    r"warn|error|fail|fallback|fall back|not (?:installed|supported|available|enough)|ignor|instead|will be|deprecat|disabled|unable|cannot|killed|oom",
    re.IGNORECASE,
)
_FIGURES = lazily(
    r"\d\s?[kmgt]i?b\b|memory|allocated|reserved|params|trainable|dtype|float32|bfloat16|float16|attention|checkpoint|shard|zero|fsdp|quantiz|step|"
    r"epoch|eval|rank|world",
    re.IGNORECASE,
)


def lines_of(excerpts: Sequence[Excerpt]) -> tuple[Line, ...]:
    """At most 3,000 lines of at most 400 characters, in their order; a longer paragraph sentence by sentence."""
    scored: list[tuple[int, int, Line]] = []
    for text in excerpts:
        total = len(text.lines)
        for index, line in enumerate(text.lines):
            if not line.text or frame_of(line, "") is not None:
                continue
            score = _score(line, index, total)
            scored.extend((score, len(scored), Line(text.where(line), part, line.rank, line.count)) for part in _parts(line.text.strip()))
    if len(scored) > LINES:
        scored = sorted(sorted(scored, key=lambda s: (-s[0], s[1]))[:LINES], key=lambda s: s[1])
    return tuple(line for _, _, line in scored)


def _parts(text: str) -> list[str]:
    """The line, or where it is a paragraph that people write as one line, its sentences; what a program prints that is as long is cut."""
    if len(text) <= WIDTH:
        return [text]
    said = sentences(text[:PARAGRAPH])
    return [part[:WIDTH] for part in said] if len(said) > 1 else [text[:WIDTH]]


def _score(line: LogLine, index: int, total: int) -> int:
    score = 0
    if _LOUD.search(line.text):
        score += 4
    if _FIGURES.search(line.text):
        score += 2
    if index >= total - 200 or index < 100:
        score += 1
    return score
