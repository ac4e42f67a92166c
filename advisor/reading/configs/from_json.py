"""JSON, and JSON with comments and trailing commas, with the line of each key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.frameworks.key import Key, Unread
from advisor.reading.configs.parsed import MAX_DEPTH, Parsed, RefusedError
from advisor.reading.pattern import pattern

_JSON5_BYTES = 64 * 1024  # json5 reads slowly; nobody writes comments into larger configs
_LOOSE = pattern(r",\s*[}\]]")
_PLACEHOLDER = pattern(r"([:\[,]\s*)(?!NaN|Infinity|True\b|False\b|None\b)([A-Z]\w*)(?=\s*[,}\]\n])")

_WORDS = pattern(r"([:\[,]\s*)(True|False|None)(?=\s*[,}\]\n])")
_WORD = {"True": "true", "False": "false", "None": "null"}


def load(text: str) -> Any:
    """The data, or ``None`` where the text is no JSON.

    Raises:
        RefusedError: nested deeper than any real config.
    """
    depth = deepest = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > 4 * MAX_DEPTH:
        raise RefusedError(f"nested {deepest} deep; no config is, so it was not read")
    for form in (text, _WORDS.sub(lambda m: m[1] + _WORD[m[2]], text)):  # a dict printed by Python, or written with its words
        try:
            return json.loads(form)
        except (ValueError, RecursionError):
            continue
    loose = any(sign in text for sign in ("//", "/*", "'")) or _LOOSE.search(text) or _PLACEHOLDER.search(text)
    if len(text) > _JSON5_BYTES or not loose:
        return None
    if len(text) <= _JSON5_BYTES and _PLACEHOLDER.search(text):  # a template: placeholders as texts
        text = _PLACEHOLDER.sub(r'\1"$\2"', text)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    import json5  # slow to load, rarely needed

    try:
        return json5.loads(text)
    except (ValueError, RecursionError):
        return None


def parse(text: str) -> Parsed | None:
    """Keys of a JSON mapping; ``None`` where it is none."""
    data = load(text)
    return keys(text, data) if isinstance(data, Mapping) else None


def keys(text: str, data: Mapping[str, Any]) -> Parsed:
    """The keys of a mapping that was read from a text, each with its line."""
    parsed = Parsed("json", data=data)
    lines = text.splitlines()
    position, line = 0, 1
    for path, value in flatten(data):
        match = re.compile(r"[\"']?" + re.escape(path.rsplit(".", 1)[-1]) + r"[\"']?\s*:").search(text, position)
        if match:
            line += text.count("\n", position, match.start())
            position = match.start()
        if isinstance(value, str) and value.startswith("$"):  # a template's placeholder
            value = Unread(value)
        parsed.add(Key(path, value, line, lines[line - 1].strip()[:500] if line <= len(lines) else ""))
    return parsed


def flatten(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Dotted paths and values, in the order of the text; lists are values."""
    if depth > MAX_DEPTH:
        raise RefusedError(f"nested more than {MAX_DEPTH} deep; no config is, so it was not read")
    for name, value in data.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, path, depth + 1)
        else:
            yield path, value
