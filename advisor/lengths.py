"""Lengths of a data set's samples: a histogram and the places of the longest, never the text; and the chance to meet one that does not fit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

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


class Lengths(Struct, frozen=True):
    """``histogram``: (upper bound in tokens, samples), ascending. ``longest``: (tokens, row), longest first. ``unit``: how tokens were counted.

    ``not_understood``: rows in which no text, tokens or length was found, of no known length; ``first_not_understood``: the first of them.
    """

    histogram: tuple[tuple[int, int], ...]
    longest: tuple[tuple[int, int], ...]
    unit: str
    not_understood: int = 0
    first_not_understood: int | None = None

    @property
    def samples(self) -> int:
        """How many samples were counted."""
        return sum(count for _, count in self.histogram)

    def quantile(self, share: float) -> int:
        """The bound within which a share of the samples lies: a bucket's, and never above the longest of them."""
        left = math.ceil(share * self.samples)
        for upper, count in self.histogram:
            left -= count
            if left <= 0:
                return min(upper, self.longest[0][0]) if self.longest else upper
        return self.histogram[-1][0] if self.histogram else 0

    def longer_than(self, tokens: int) -> int:
        """Samples of buckets whose bound is above ``tokens``: at most a bucket's width (3 %) too many."""
        return sum(count for upper, count in self.histogram if upper > tokens)


def bucket(tokens: int) -> int:
    """The upper bound of a length's bucket: 32 buckets an octave, so at most 3 % above it."""
    width = 1 << max(0, tokens.bit_length() - 6)
    return -(-tokens // width) * width


def measure(path: Path, count: Callable[[str], int] | None = None, *, per_token: float = CHARACTERS_PER_TOKEN) -> Lengths:
    """The lengths of a file (JSON lines, JSON list, parquet, arrow, CSV, plain text: a line a sample), of a folder of such files, or of a data set on disk.

    ``count``: tokens of a text; without it characters are divided by ``per_token``. Rows with ``input_ids`` are counted exactly.

    Raises:
        LengthsError: nothing readable in it.
    """
    histogram: dict[int, int] = {}
    longest: list[tuple[int, int]] = []
    exact, unknown, first = True, 0, None
    for row, value in enumerate(rows.rows(path)):
        if (found := _length(value, count, per_token)) is None:
            unknown, first = unknown + 1, row if first is None else first
            continue
        tokens, counted = found
        exact = exact and counted
        histogram[bucket(tokens)] = histogram.get(bucket(tokens), 0) + 1
        if len(longest) < KEPT_LONGEST:
            heapq.heappush(longest, (tokens, row))
        elif tokens > longest[0][0]:
            heapq.heapreplace(longest, (tokens, row))
    if not histogram and first is not None:
        raise LengthsError(f"{path.name}: in none of {unknown:,} rows is a text, a conversation, input_ids or a length")
    if not histogram:
        raise LengthsError(f"{path.name} holds no samples; give JSON lines, parquet, arrow, CSV or plain text")
    unit = "tokens" if exact else f"tokens, each taken as {per_token:g} characters (assumed; give --tokenizer tokenizer.json to count)"
    return Lengths(tuple(sorted(histogram.items())), tuple(sorted(longest, key=lambda item: (-item[0], item[1]))), unit, unknown, first)


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


def _length(row: Any, count: Callable[[str], int] | None, per_token: float) -> tuple[int, bool] | None:
    """Tokens of a row, and whether they were counted rather than assumed; ``None``: nothing in it says how long it is."""
    if isinstance(row, dict):
        for name in ("input_ids", "tokens"):
            ids = row.get(name)
            if isinstance(ids, (list, tuple)) and all(isinstance(token, (int, float)) for token in ids[:1]):
                return len(ids), True
        for name in ("length", "num_tokens", "n_tokens"):
            value = row.get(name)
            if (
                isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 40 and value == int(value)
            ):  # nullable columns come as floats
                return int(value), True
    text = _text(row)
    if text is None:
        return None
    if count is not None:
        return count(text), True
    return math.ceil(len(text) / per_token), False


def _text(row: Any) -> str | None:
    if isinstance(row, str):
        return row
    if not isinstance(row, dict):
        return None
    for name in ("messages", "conversations", "text", "content"):
        if (said := _said(row.get(name))) is not None:
            return said
    for names in _PAIRS:
        parts = [said for name in names if (said := _said(row.get(name))) is not None]
        if len(parts) == len(names):
            return "\n".join(parts)
    strings = [value for value in row.values() if isinstance(value, str)]
    return "\n".join(strings) if strings else None


def _said(value: Any) -> str | None:
    """A text, or the turns of a conversation (``content`` or ``value``, as a text or as parts with ``text``); ``None``: neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)) or not all(isinstance(turn, dict) for turn in value):
        return None
    return "\n".join(_turn(turn.get("content") or turn.get("value")) for turn in value)


def _turn(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
