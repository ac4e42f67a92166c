"""Hydra overrides and bare ``key=value`` or ``key: value`` lines."""

from __future__ import annotations

import re

from advisor.frameworks.key import Key
from advisor.reading.configs.parsed import Parsed
from advisor.reading.configs.shell_words import literal
from advisor.reading.pattern import pattern

_LINE = pattern(r"^\s*[+~]{0,2}(--)?([A-Za-z_][\w./\-@]*)\s*(=|:\s)\s*(.*?)\s*,?\s*\\?\s*$")


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
        match = _LINE.match(bare)
        if match is None or (known is not None and match.group(2).replace("-", "_") not in known):
            others += 1
            continue
        parsed.add(Key(match.group(2), literal(match.group(4).strip("\"'")), number, line.strip()[:500]))
    if not parsed.keys or (known is None and others > len(parsed.keys) * 0.5):
        return None
    parsed.comments = [(i, m.group(1)) for i, line in enumerate(text.splitlines(), 1) if (m := re.search(r"(?:^|\s)#\s*(\S.*)$", line))]
    return parsed
