"""A JSON file whose end is missing (a full disk, a killed process, a copy cut short): the keys that are complete, and where it breaks off."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from advisor.evidence import NotUnderstood
from advisor.reading.configs.config_reading import ConfigReading
from advisor.reading.configs.parsed import MAX_DEPTH
from advisor.reading.pattern import pattern

MOST = 2_000_000  # characters that are looked at: a config has some thousands
_TOKEN = pattern(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\],]', re.DOTALL)  # a text, cut or not, or a sign outside of texts
_CLOSING = {"{": "}", "[": "]"}


def salvage(text: str) -> tuple[Mapping[str, Any], int] | None:
    """(the complete pairs, the line where the text breaks off); ``None`` where the text is no mapping that was cut.

    A pair counts only if something follows it: of ``"batch": 12`` at the end nobody knows that it was not 128.
    """
    start = len(text) - len(text.lstrip())
    if len(text) > MOST or text[start : start + 1] != "{":
        return None
    opened: list[str] = []
    kept: tuple[int, str] | None = None  # (up to here the text is complete, the brackets that close it)
    for match in _TOKEN.finditer(text, start):
        sign = match[0]
        if sign in "{[":
            opened.append(sign)
            if len(opened) > MAX_DEPTH:
                return None
        elif sign in "}]":
            if not opened or _CLOSING[opened.pop()] != sign or not opened:
                return None  # brackets that do not match, or a mapping that ends: not a cut one
            kept = match.end(), _close(opened)
        elif sign == ",":
            kept = match.start(), _close(opened)
    if kept is None:
        return None
    try:
        data = json.loads(text[start : kept[0]] + kept[1])
    except (ValueError, RecursionError):
        return None
    return (data, text.count("\n", 0, len(text.rstrip())) + 1) if isinstance(data, Mapping) and data else None


def told(found: ConfigReading, name: str, text: str, line: int) -> ConfigReading:
    """The reading with a word about the end that is missing."""
    last = next((part.strip() for part in reversed(text.rstrip().splitlines()) if part.strip()), "")
    why = "the file breaks off here: what stood behind is unknown, and a pair that may be cut was not counted; give the whole file"
    return replace(found, kind=f"{found.kind}, cut off", not_understood=(NotUnderstood(f"{name}:{line}", last[:120], why), *found.not_understood))


def _close(opened: list[str]) -> str:
    return "".join(_CLOSING[sign] for sign in reversed(opened))
