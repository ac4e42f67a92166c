"""Regular expressions that are compiled only when a text has what they need: of some 300 a usual case compiles one in three."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from advisor.reading.literals import Words, needed

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split", "pattern", "flags", "groups", "groupindex", "scanner")
_folded = ("", "")  # the last text and how it looks folded: one line is held against many expressions


class _Lazy:
    """Looks like a compiled pattern. When it is compiled, the compiled one's methods take its place, so that later uses cost nothing more."""

    _words: Words | None = None

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(self._text, self._flags)
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return self.__dict__[name]

    def _absent(self, text: str) -> bool:
        global _folded
        if self._words is None:
            self._words = () if self._flags & re.VERBOSE else needed(self._text)
        if not self._words:
            return False
        last = _folded  # of one thread: another may write the next meanwhile
        if last[0] is not text:
            _folded = last = text, text.casefold()
        return not any(word in last[1] for word in self._words)

    def search(self, text: str, *span: int) -> re.Match[str] | None:
        """As of a compiled pattern, like all that follow."""
        return None if self._absent(text) else self.__getattr__("search")(text, *span)

    def match(self, text: str, *span: int) -> re.Match[str] | None:
        return None if self._absent(text) else self.__getattr__("match")(text, *span)

    def fullmatch(self, text: str, *span: int) -> re.Match[str] | None:
        return None if self._absent(text) else self.__getattr__("fullmatch")(text, *span)

    def finditer(self, text: str, *span: int) -> Iterator[re.Match[str]]:
        return iter(()) if self._absent(text) else self.__getattr__("finditer")(text, *span)

    def findall(self, text: str, *span: int) -> list[Any]:
        return [] if self._absent(text) else self.__getattr__("findall")(text, *span)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str, count: int = 0) -> str:
        return text if self._absent(text) else self.__getattr__("sub")(replacement, text, count)


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """``re.compile`` at the first text that may match."""
    return cast("re.Pattern[str]", _Lazy(text, flags))
