"""TOML, with the line of each key."""

from __future__ import annotations

import re
import tomllib

from advisor.frameworks.key import Key
from advisor.reading.configs.from_json import flatten
from advisor.reading.configs.parsed import Parsed
from advisor.reading.pattern import pattern

_LOOKS = pattern(r"^[ \t]*\[\[?[\w.\-\"]+\]\]?\s*(#.*)?$", re.MULTILINE)


def parse(text: str, *, named: bool = False) -> Parsed | None:
    """Keys of a TOML text; ``None`` where it is none."""
    if not named and not _LOOKS.search(text):
        return None
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return None
    if not data:
        return None
    lines = text.splitlines()
    parsed = Parsed("toml", data=data)
    at = 0
    for path, value in flatten(data):
        leaf = re.compile(r"^\s*[\"']?" + re.escape(path.rsplit(".", 1)[-1]) + r"[\"']?\s*=")
        at = next((i for i in (*range(at, len(lines)), *range(at)) if leaf.match(lines[i])), at)
        parsed.add(Key(path, value, at + 1, lines[at].strip() if lines else ""))
    parsed.comments = [(i + 1, line.split("#", 1)[1].strip()) for i, line in enumerate(lines) if "#" in line]
    return parsed
