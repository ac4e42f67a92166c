"""A key that was seen in a text, before anything is known of its framework."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

CHOSEN = "a condition"  # the source of a value that a condition chooses: ``ref if full else None``
Plain = None | bool | int | float | str


class Key(Struct, frozen=True):
    """``path`` is dotted (``zero_optimization.stage``), ``scope`` the Python call or command that it stands in (empty: a file's own keys).

    ``weak``: from a comment, a bare assignment or a name, so that anything firmer wins.
    """

    path: str
    value: Any
    line: int
    text: str
    scope: str = ""
    weak: bool = False


class Unread(Struct, frozen=True):
    """A value that is no literal: an expression, a variable, an interpolation that leads nowhere."""

    source: str

    @property
    def leaf(self) -> str | None:
        """The last part of a path, where only its beginning is not known: ``Qwen3-8B`` of ``$ROOT/models/Qwen3-8B``."""
        head, slash, last = self.source.rstrip("/").rpartition("/")
        return last if slash and head and re.fullmatch(r"[A-Za-z][\w.\-]*\d[\w.\-]*", last) else None

    def __str__(self) -> str:
        return self.source
