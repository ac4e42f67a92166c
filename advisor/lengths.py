"""Lengths of a data set's samples: a histogram and the places of the longest, never the text; and the chance to meet one that does not fit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor import rows
from advisor.rows import LengthsError

CHARACTERS_PER_TOKEN = 4.0  # of English text under today's vocabularies, a rule of thumb: an assumption wherever no tokenizer is given
KEPT_LONGEST = 4096
_PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "chosen"),
    ("instruction", "input", "output"),
    ("question", "answer"),
    ("query", "response"),
)


@dataclass(frozen=True)
class Lengths:
    """``histogram``: (upper bound in tokens, samples), ascending. ``longest``: (tokens, row), longest first. ``unit``: how tokens were counted."""

    histogram: tuple[tuple[int, int], ...]
    longest: tuple[tuple[int, int], ...]
    unit: str

    @property
    def samples(self) -> int:
        """How many samples were counted."""
        return sum(count for _, count in self.histogram)

    def quantile(self, share: float) -> int:
        """The bound below which a share of the samples lies."""
        left = math.ceil(share * self.samples)
        for upper, count in self.histogram:
            left -= count
            if left <= 0:
                return upper
        return self.histogram[-1][0] if self.histogram else 0

    def longer_than(self, tokens: int) -> int:
        """Samples of buckets whose bound is above ``tokens``: at most a bucket's width (3 %) too many."""
        return sum(count for upper, count in self.histogram if upper > tokens)


def bucket(tokens: int) -> int:
    """The upper bound of a length's bucket: 32 buckets an octave, so at most 3 % above it."""
    width = 1 << max(0, tokens.bit_length() - 6)
    return -(-tokens // width) * width


def measure(path: Path, count: Callable[[str], int] | None = None, *, per_token: float = CHARACTERS_PER_TOKEN) -> Lengths:
    """The lengths of a file (JSON lines, JSON list, parquet, arrow, plain text: a line a sample), of a folder of such files, or of a data set on disk.

    ``count``: tokens of a text; without it characters are divided by ``per_token``. Rows with ``input_ids`` are counted exactly.

    Raises:
        LengthsError: nothing readable in it.
    """
    histogram: dict[int, int] = {}
    longest: list[tuple[int, int]] = []
    exact = True
    for row, value in enumerate(rows.rows(path)):
        tokens, counted = _length(value, count, per_token)
        exact = exact and counted
        histogram[bucket(tokens)] = histogram.get(bucket(tokens), 0) + 1
        if len(longest) < KEPT_LONGEST:
            heapq.heappush(longest, (tokens, row))
        elif tokens > longest[0][0]:
            heapq.heapreplace(longest, (tokens, row))
    if not histogram:
        raise LengthsError(f"{path.name} holds no samples; give JSON lines, parquet, arrow or plain text")
    unit = "tokens" if exact else f"characters divided by {per_token:g} (assumed; give --tokenizer tokenizer.json to count)"
    return Lengths(tuple(sorted(histogram.items())), tuple(sorted(longest, key=lambda item: (-item[0], item[1]))), unit)


def chance(long: int, samples: int, drawn: int) -> float:
    """The probability that ``drawn`` samples of an epoch (without replacement) hold at least one of ``long``; certain after a whole epoch.

    1 - C(samples - long, drawn) / C(samples, drawn), the hypergeometric distribution's term for none.
    """
    if long <= 0:
        return 0.0
    if drawn > samples - long:
        return 1.0
    log_none = math.lgamma(samples - long + 1) - math.lgamma(samples - long - drawn + 1) - math.lgamma(samples + 1) + math.lgamma(samples - drawn + 1)
    return -math.expm1(min(0.0, log_none))


def _length(row: Any, count: Callable[[str], int] | None, per_token: float) -> tuple[int, bool]:
    """Tokens of a row, and whether they were counted rather than assumed."""
    if isinstance(row, dict):
        for name in ("input_ids", "tokens"):
            if hasattr(row.get(name), "__len__") and not isinstance(row[name], str):
                return len(row[name]), True
        for name in ("length", "num_tokens", "n_tokens"):
            if isinstance(row.get(name), int):
                return max(0, row[name]), True
    text = _text(row)
    if count is not None:
        return count(text), True
    return math.ceil(len(text) / per_token), False


def _text(row: Any) -> str:
    if isinstance(row, str):
        return row
    if not isinstance(row, dict):
        return ""
    for name in ("messages", "conversations", "text", "content"):
        value = row.get(name)
        if isinstance(value, str):
            return value
        if value is not None and hasattr(value, "__iter__"):
            turns = (turn.get("content") or turn.get("value") or "" for turn in value if isinstance(turn, dict))
            return "\n".join(turn if isinstance(turn, str) else "" for turn in turns)
    for names in _PAIRS:
        if all(isinstance(row.get(name), str) for name in names):
            return "\n".join(row[name] for name in names)
    return "\n".join(value for value in row.values() if isinstance(value, str))
