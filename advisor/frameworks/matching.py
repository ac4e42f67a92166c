"""Whether values that were seen are those that a case asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.key import Unread
from advisor.frameworks.table import ANY, Case

EMPTY = ("auto", "none", "null", "")


def matches(case: Case, seen: Mapping[str, Any]) -> bool:
    """``None`` asks for absence, ``*`` for any value, ``~text`` for a value that contains the text."""
    for key, wanted in case.when.items():
        value = seen.get(key)
        if isinstance(value, Unread):
            return bool(wanted == ANY)
        if wanted is None:
            if value is not None and word(value) not in ("none", "null", "", "false"):
                return False
        elif wanted == ANY:
            if value is None:
                return False
        elif isinstance(wanted, str) and wanted.startswith("~"):
            if value is None or wanted[1:].lower() not in word(value):
                return False
        elif value is None or word(value) != word(wanted):
            return False
    return True


def word(value: Any) -> str:
    """A value in one spelling: ``True``, ``yes`` and ``"on"`` are the same."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    text = str(value).strip().lower()
    return {"yes": "true", "no": "false", "on": "true", "off": "false"}.get(text, text).removeprefix("torch.")
