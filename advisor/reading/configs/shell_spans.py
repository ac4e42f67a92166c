"""Where a quote or a bracket of a shell text is closed, within a budget of steps: a hostile text is cut short, never slow."""

from __future__ import annotations

from collections.abc import Callable

_CLOSING = {"(": ")", "{": "}"}
_MOST_QUOTED = 20_000  # characters within one pair of quotes; an apostrophe of prose is not the start of so long a text
_MOST_BRACKETED = 200_000
_DEEPEST = 40


class Spans:
    """The spans of one text. Each answer is remembered, and all scanning together takes at most some 5 steps a character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._known: dict[int, int] = {}
        self._steps = 5 * len(text) + 10_000
        self._depth = 0

    def balanced(self, at: int) -> int:
        """The position behind the bracket that closes the one at ``at``; quotes within are skipped. Without one, behind the bracket itself."""
        return self._remembered(at, self._bracketed, at + 1)

    def closed(self, at: int) -> int:
        """The position behind the quote that closes the one at ``at``; ``at`` itself where it is never closed."""
        if self.text[at] == "'":
            end = self.text.find("'", at + 1, at + _MOST_QUOTED)
            return end + 1 if end >= 0 else at
        return self._remembered(at, self._quoted, at)

    def _remembered(self, at: int, scan: Callable[[int], int | None], otherwise: int) -> int:
        if (known := self._known.get(at)) is not None:
            return known
        found: int | None = None
        if self._depth < _DEEPEST and self._steps > 0:
            self._depth += 1
            found = scan(at)
            self._depth -= 1
        self._known[at] = otherwise if found is None else found
        return self._known[at]

    def _bracketed(self, at: int) -> int | None:
        text, opening, pos, depth = self.text, self.text[at], at, 0
        closing = _CLOSING[opening]
        limit = min(len(text), at + _MOST_BRACKETED)
        while pos < limit and self._steps > 0:
            self._steps -= 1
            sign = text[pos]
            if sign == "\\":
                pos += 2
                continue
            if sign in "'\"" and (end := self.closed(pos)) > pos:
                pos = end
                continue
            if sign == "#" and opening == "(" and text[pos - 1].isspace():
                end = text.find("\n", pos, limit)
                pos = limit if end < 0 else end
                continue
            depth += (sign == opening) - (sign == closing)
            pos += 1
            if depth == 0:
                return pos
        return None

    def _quoted(self, at: int) -> int | None:
        text, pos = self.text, at + 1
        limit = min(len(text), at + _MOST_QUOTED)
        while pos < limit and self._steps > 0:
            self._steps -= 1
            if text[pos] == "\\":
                pos += 2
            elif text[pos] == '"':
                return pos + 1
            elif text.startswith(("$(", "${"), pos):
                pos = self.balanced(pos + 1)
            else:
                pos += 1
        return None
