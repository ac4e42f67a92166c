"""What any match of a regular expression must contain, found by reading the expression once from left to right.

Compiling an expression costs 0.3 to 1 ms, looking for a word in a text some microseconds. Of some 450 expressions that a diagnosis holds against a
text, most fail because a word is not in it: these are never compiled. Where this reader does not follow an expression, it says that nothing is certain.
"""

from __future__ import annotations

import re

MOST = 12  # alternatives that are looked for one by one; with more of them compiling is as cheap
SHORTEST = 3  # letters that a word needs in order to rule much out
_TOKEN = re.compile(
    r"([^\\\[\](){}|.^$*+?]+)"  # 1 plain characters
    r"|\\(.)"  # 2 an escape
    r"|(\[\^?\]?(?:[^\]\\]|\\.)*\]|[.^$])"  # 3 a class, a point, an anchor
    r"|(\((?:\?(?::|P<\w+>|<?[=!]))?)"  # 4 what opens
    r"|(\))"  # 5 what closes
    r"|(\|)"  # 6 a bar
    r"|([*+?][?+]?|\{\d*(?:,\d*)?\}[?+]?)",  # 7 how often
    re.DOTALL,
)
_LITERAL = frozenset(" !\"#%&'(),-./:;<=>@[]^_`{|}~*+?$\\")
_SHAPE = frozenset("bBdDsSwWAZnt")  # a place, or a character that is not known
Words = tuple[str, ...]


class _Level:
    """What is known between two parentheses: of the alternatives that have ended, and of the one being read."""

    __slots__ = ("asserts", "atom", "best", "certain", "ended", "run")

    def __init__(self, asserts: bool) -> None:
        self.asserts = asserts
        self.ended: list[str] = []
        self.certain = True
        self.begin()

    def begin(self) -> None:
        """The next alternative: ``run`` stands certainly one after another, ``atom`` (words of the last group) may still be repeated away."""
        self.run, self.best, self.atom = "", (), ()  # type: str, Words, Words

    def close(self) -> None:
        """What was read last is certain, and its run ends."""
        for words in ((self.run,) if self.run else (), self.atom):
            if words and len(words) <= MOST and min(map(len, words)) > min(map(len, self.best), default=0):
                self.best = words
        self.run, self.atom = "", ()

    def end(self) -> Words:
        """The words of which one is needed here."""
        self.bar()
        return tuple(dict.fromkeys(self.ended)) if self.certain and not self.asserts else ()

    def bar(self) -> None:
        """An alternative ends."""
        self.close()
        self.certain = self.certain and bool(self.best)
        self.ended += self.best
        self.begin()

    def repeated(self, times: str) -> None:
        """The last atom may be absent, or occur more than once."""
        absent = times[0] in "*?" or times[:2] in ("{0", "{}", "{,")
        if self.atom:
            self.atom = () if absent else self.atom
        elif self.run:
            last = self.run[-1]
            self.run = self.run[:-1] if absent else self.run
            self.close()
            self.run = "" if absent else last
        self.close()


def needed(text: str) -> Words:
    """Words in folded case; every match of the expression contains one of them. Empty: nothing is certain."""
    levels, at = [_Level(asserts=False)], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token[4] == "(" and text.startswith("?", token.end())):
            return ()
        at, level = token.end(), levels[-1]
        match token.lastindex:
            case 1:
                if level.atom:
                    level.close()
                level.run += token[1].casefold()
            case 2 if token[2] in _LITERAL:
                if level.atom:
                    level.close()
                level.run += token[2]
            case 2 if token[2] not in _SHAPE:
                return ()
            case 2 | 3:
                level.close()
                at = _skipped(text, at)
            case 4:
                level.close()
                levels.append(_Level(asserts=token[4][-1] in "=!"))
            case 5:
                if len(levels) == 1:
                    return ()
                levels.pop()
                levels[-1].atom = level.end()
                if not levels[-1].atom:
                    at = _skipped(text, at)
            case 6:
                level.bar()
            case 7 if level.run or level.atom:
                level.repeated(token[7])
            case _:
                return ()
    words = levels[0].end() if len(levels) == 1 else ()
    return words if words and min(map(len, words)) >= SHORTEST else ()


def _skipped(text: str, at: int) -> int:
    """Past how often something occurs of which nothing is known."""
    token = _TOKEN.match(text, at)
    return token.end() if token is not None and token.lastindex == 7 else at
