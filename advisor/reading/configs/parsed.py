"""A text taken apart: its keys, the calls and commands that stand in it, and what it imports. Nothing here knows of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from advisor.frameworks.key import Key

MAX_KEYS = 5_000  # a real config has some hundreds
MAX_DEPTH = 40


class RefusedError(ValueError):
    """A text that is refused; the message says what was read and why it is not expanded."""


class Parsed(Struct):
    """``calls``: (name, line, text) of every call; ``programs``: (command up to its arguments, line, text); ``data``: the whole, where it is one mapping."""

    form: str
    keys: list[Key] = field(default_factory=list)
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    programs: list[tuple[str, int, str]] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)
    data: Mapping[str, Any] | None = None
    notes: list[tuple[int, str, str]] = field(default_factory=list)  # (line, text, why) that could not be taken apart

    def add(self, key: Key) -> None:
        """Append, within bounds. Python writes no number of more than 4,300 digits out, and a hexadecimal one may have them."""
        try:
            str(key.value)
        except ValueError:
            self.notes.append((key.line, key.path, "a number of thousands of digits; it was not counted"))
            return
        if len(self.keys) >= MAX_KEYS:
            raise RefusedError(f"more than {MAX_KEYS:,} keys; a training config has some hundreds")
        self.keys.append(key)

    def extend(self, other: Parsed) -> None:
        """Take over what another part of the same text holds."""
        for key in other.keys:
            self.add(key)
        for mine, theirs in (
            (self.calls, other.calls),
            (self.programs, other.programs),
            (self.imports, other.imports),
            (self.comments, other.comments),
            (self.notes, other.notes),
        ):
            mine.extend(theirs)  # type: ignore[arg-type]
