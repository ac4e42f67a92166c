"""Hydra overrides and bare ``key=value`` or ``key: value`` lines."""

from __future__ import annotations

import re

from advisor.frameworks.key import Key
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern

_LINE = pattern(r"^\s*[+~]{0,2}(?:--)?([A-Za-z_][\w./\-@]*)\s*(?:=|:\s)\s*(.*)$")
_NEXT = pattern(r"(?:,\s*|(?<!\s)\s{2,})(?=[A-Za-z_][\w.]*\s*(?:=|:\s)\s*[^\s=:])")


def _side_by_side(value: str) -> list[str]:
    """A value, and the settings that stand behind it on the same line (``2, gradient_checkpointing: true``); within brackets nothing is cut."""
    return [value] if value[:1] in "[{(\"'" else _NEXT.split(value)


def _setting(line: str) -> tuple[str, str] | None:
    """Key and value of a line; a comma and a backslash at its end are none of the value."""
    found = _LINE.match(line)
    if found is None:
        return None
    return found[1], found[2].rstrip().removesuffix("\\").rstrip().removesuffix(",").rstrip()


def parse(text: str, known: frozenset[str] | None = None) -> Parsed | None:
    """Keys of lines that are ``key=value``; ``None`` where most lines are something else.

    With ``known`` only lines with these keys are taken, and the others are let pass: text that a person wrote around them.
    """
    parsed = Parsed("overrides")
    others = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(?:^|\s)#\s.*$", "", line)
        if not bare.strip():
            continue
        found = _setting(bare)
        if found is None or (known is not None and found[0].replace("-", "_") not in known):
            others += 1
            continue
        first, *more = _side_by_side(found[1]) if known is not None else [found[1]]
        parsed.add(Key(found[0], literal(first.strip("\"'")), number, line.strip()[:500]))
        for setting in more:
            if (other := _setting(setting)) is not None and other[0].replace("-", "_") in (known or ()):
                parsed.add(Key(other[0], literal(other[1].strip("\"'")), number, line.strip()[:500]))
    if not parsed.keys or (known is None and others > len(parsed.keys) * 0.5):
        return None
    parsed.comments = [(i, m.group(1)) for i, line in enumerate(text.splitlines(), 1) if (m := re.search(r"(?:^|\s)#\s*(\S.*)$", line))]
    return parsed
