"""Regular expressions that are compiled when they are first tried: of some 180 a usual case uses two thirds, the process that opens a snapshot a few."""

from __future__ import annotations

import re
from typing import Any, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split", "pattern", "flags", "groups", "groupindex", "scanner")


class _Lazy:
    """Looks like a compiled pattern. Its first use puts the compiled one's methods in its place, so that later uses cost nothing more."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return self.__dict__[name]


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """``re.compile`` at the first use."""
    return cast("re.Pattern[str]", _Lazy(text, flags))
