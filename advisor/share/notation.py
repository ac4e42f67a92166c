"""Lists and mappings as short readable text for links and ``--set``: ``rmsnorm,swiglu`` and ``torch:2.4.1,act:silu``.

Inner values: ``(key:value,...)``, ``!(a,b)``, ``!t !f !n``, numbers, words, and ``'...'`` (``!`` escapes ``!`` and ``'``) for any other
text. This is the notation of rison (github.com/Nanonid/rison) without its outer brackets. Depth and length are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.reading.pattern import pattern

MAX_DEPTH = 6
MAX_TEXT = 20_000
_WORD = pattern(r"[^\s'!:(),*@$&=#%+\"]+")
_NUMBER = pattern(r"-?(0|[1-9]\d{0,20})(\.\d{1,20})?([eE][-+]?\d{1,3})?")


class NotationError(ValueError):
    """Text that is not in this notation; the message says where."""


def write_list(values: Sequence[Any]) -> str:
    """``a,b``; the empty list is an empty text."""
    return ",".join(_write(v) for v in values)


def write_mapping(values: Mapping[str, Any]) -> str:
    """``key:value,key:value``."""
    return ",".join(f"{_write(str(k))}:{_write(v)}" for k, v in values.items())


def read_list(text: str) -> list[Any]:
    """The list of a text.

    Raises:
        NotationError: where the text is not in the notation.
    """
    return _read(f"!({text.rstrip(',')})") if text else []


def read_mapping(text: str) -> dict[str, Any]:
    """The mapping of a text.

    Raises:
        NotationError: where the text is not in the notation.
    """
    return _read(f"({text})") if text else {}


def _write(value: Any) -> str:
    if value is None:
        return "!n"
    if isinstance(value, bool):
        return "!t" if value else "!f"
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            return "!n"
        return repr(value)
    if isinstance(value, Mapping):
        return f"({write_mapping(value)})"
    if isinstance(value, (list, tuple)):
        return f"!({write_list(value)})"
    text = str(value)
    if _WORD.fullmatch(text) and not _NUMBER.fullmatch(text):
        return text
    return "'" + text.replace("!", "!!").replace("'", "!'") + "'"


def _read(text: str) -> Any:
    if len(text) > MAX_TEXT:
        raise NotationError(f"{len(text):,} characters are too long")
    value, end = _value(text, 0, 0)
    if end != len(text):
        raise NotationError(f"unexpected {text[end]!r} at character {end}")
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise NotationError("nested too deeply")
    head = text[at : at + 2]
    if head in ("!t", "!f", "!n"):
        return {"!t": True, "!f": False, "!n": None}[head], at + 2
    if head == "!(":
        return _items(text, at + 2, depth)
    if head[:1] == "(":
        return _pairs(text, at + 1, depth)
    if head[:1] == "'":
        return _quoted(text, at + 1)
    match = _WORD.match(text, at)
    if match is None:
        raise NotationError(f"a value is missing at character {at}")
    word = match.group()
    if _NUMBER.fullmatch(word):
        return (float(word) if any(c in word for c in ".eE") else int(word)), match.end()
    return word, match.end()


def _items(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    while text[at : at + 1] != ")":
        if out:
            at = _expect(text, at, ",")
        value, at = _value(text, at, depth + 1)
        out.append(value)
    return out, at + 1


def _pairs(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while text[at : at + 1] != ")":
        if out:
            at = _expect(text, at, ",")
        key, at = _value(text, at, depth + 1)
        at = _expect(text, at, ":")
        out[str(key)], at = _value(text, at, depth + 1)
    return out, at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    out: list[str] = []
    while at < len(text):
        if text[at] == "'":
            return "".join(out), at + 1
        if text[at] == "!":
            at += 1
        out.append(text[at : at + 1])
        at += 1
    raise NotationError("a quoted text has no end")


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise NotationError(f"{sign!r} is missing at character {at}")
    return at + 1
