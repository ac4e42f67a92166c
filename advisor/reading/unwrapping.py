"""Lines that a terminal or a mail broke, as one again: told by a frame that breaks off, never by how long a line is alone.

A frame of a traceback is one line, ``File "path", line N, in name``. Where it ends before its name and goes on in the next line, the text was broken
there; a text that was broken at a fixed width breaks all its longer lines at that width.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from advisor.reading.pattern import pattern
from advisor.reading.prefixes import split

NARROWEST = 40  # columns: narrower is no terminal
PIECES = 60  # of one line
LONGEST = 16_384
_BEGUN = pattern(r'File "[^"\n]{0,600}$|File "[^"\n]{1,600}"[, a-z\d]{0,24}$')
_WHOLE = pattern(r'File "[^"\n]{1,600}", line \d{1,7}(?:, in \S.{0,200})?$')
_NAMED = pattern(r'File "[^"\n]{1,600}", line \d{1,7}, in \S')
_REST = pattern(r"(?=.)[\w.]{0,80}>?$")  # of a function's name; code stands indented
_FOLLOWS = pattern(r" ?[\w(;,.)]")  # the middle of a sentence
_RAISED = pattern(r"(?:Error|Exception): \S")
_STARTS = pattern(r'\s{0,8}File "|.{0,80}Traceback \(most|(?:\w+\.){0,8}\w{1,80}(?:Error|Exception): ')
_BOX = "|+│┃╭╰├─═"

Piece = tuple[int, str, int]  # the line's number, its text, the hash of its template


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The lines, those that were broken put together under the number of their first piece."""
    widths = _widths(pieces)
    out: list[Piece] = []
    index = 0
    while index < len(pieces):
        number, text, key = pieces[index]
        count = 1
        while index + count < len(pieces) and count < PIECES and len(text) < LONGEST and pieces[index + count][0] == number + count:
            below = pieces[index + count][1]
            between = _goes_on(text, pieces[index + count - 1][1], below, widths)
            if between is None:
                break
            text += between + (below.lstrip() if between else below)
            count += 1
        out.append((number, text, key))
        index += count
    return out


def _goes_on(text: str, last: str, below: str, widths: frozenset[int]) -> str | None:
    """What stands between a line and the next where they are one: nothing, or a space; ``None``: they are two."""
    if not below.strip() or _STARTS.match(below) is not None or split(below).stream:
        return None
    if len(last) in widths and not (last[-1:] in _BOX and below[:1] in _BOX) and (_NAMED.search(text) is None or _REST.match(below)):
        return ""
    return _of_a_frame(text, below)


def _of_a_frame(text: str, below: str) -> str | None:
    if 'File "' not in text or _BEGUN.search(text) is None or _NAMED.search(text) is not None:
        return None
    for between, rest in (("", below), (" ", below.lstrip())):
        if (whole := _WHOLE.search(text + between + rest)) is not None and (whole.end() > len(text)) and _NAMED.search(whole[0]):
            return between
    return None


def _widths(pieces: Sequence[Piece]) -> frozenset[int]:
    """The widths at which the text was broken: each is the length of a line that is proved to go on."""
    proved: Counter[int] = Counter()
    for (number, text, _), (after, below, _) in pairwise(pieces):
        if after != number + 1 or len(text) < NARROWEST:
            continue
        if (
            _of_a_frame(text, below) == ""
            or (_NAMED.search(text) and _REST.match(below))
            or (_RAISED.search(text) and split(text).stream and not split(below).stream and _FOLLOWS.match(below) and _STARTS.match(below) is None)
            or (len(text) == len(below) and below[:1] not in _BOX and _RAISED.search(text) and _STARTS.match(below) is None and _unlike(text, below))
        ):
            proved[len(text)] += 1
    longest = max((len(text) for _, text, _ in pieces if text[-1:] not in _BOX), default=0)
    return frozenset(width for width, times in proved.items() if times > 1 or width == longest)


def _unlike(text: str, below: str) -> bool:
    """Whether two lines of one length are no rows of one table."""
    return re.sub(r"\d+", "", text) != re.sub(r"\d+", "", below)
