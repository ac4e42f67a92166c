"""What a logger, a collector, an editor or a mail put before every line of a traceback: found by the traceback's own shape, whoever put it there.

Python prints ``Traceback (most recent call last):`` at the left margin, its frames two spaces to the right of it and the error at the left margin again
(cpython ``Lib/traceback.py``, StackSummary.format and TracebackException.format). So what stands left of them is no part of the traceback. Digits
within it may differ from line to line (times, numbers of lines).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from advisor.reading.pattern import pattern
from advisor.reading.prefixes import Prefix, split

LONGEST = 160  # characters of a margin
MOST = 6  # margins of one text
STEP = 2  # spaces by which Python indents a frame
_HEAD = "Traceback (most recent call last)"
_FRAME = pattern(r'File "[^"\n]{1,600}"(?:, line \d|, in )')
# of IPython (core/ultratb.py) and rich (traceback.py), which stand at the left margin themselves, or in a box
_FLUSH = pattern(
    r"File (?:[\w./\\~@+-]{1,300}\.py|<[^>]{1,80}>):\d{1,7},? in [\w<]|[\u2502|] [\w./\\~@+ -]{1,300}\.py:\d{1,7} in [\w<]|"
    r"(?<!\S)[\w./~@+-]{0,300}/[\w.-]{1,80}\.py in [\w<][\w.>]{0,80}\("
)
_BOX = "\u256d"
_ITEM = pattern(r"((?:[-*+]|\d{1,3}\.) {1,3})\s{0,4}\S")
_RUNS = pattern(r"\d+|\s+|[^\d\s]+")


def shifted(texts: Sequence[str]) -> list[str]:
    """The lines of a text that was indented as a whole, or that is an item of a list, moved to the left by what all of them are indented by."""
    depths = [len(text) - len(text.lstrip(" ")) for text in texts if text.strip() and _ITEM.match(text) is None]
    depth = min(depths, default=0)
    marked = [len(m[1]) for text in texts if (m := _ITEM.match(text)) is not None]
    if not depth or not marked:
        return [text[depth:] for text in texts]
    return [text[depth:] if _ITEM.match(text) is None or marked == [depth] else text for text in texts]


def without(lines: Sequence[Prefix]) -> list[Prefix]:
    """The lines of one text, each without its margin; ranks and times that stand within or behind one are kept."""
    found = list(_margins([line.text for line in lines]))
    patterns = [_pattern(margin) for margin in found if margin.strip()]
    out = [_taken(line, patterns) for line in lines] if patterns else list(lines)
    return _dedented(out)


def _margins(texts: Sequence[str]) -> Iterator[str]:
    """The margins of tracebacks, those of whole ones before those whose first line is missing."""
    heads: dict[str, str] = {}
    frames: dict[str, str] = {}
    flush: dict[str, str] = {}
    below: set[str] = set()
    for number, text in enumerate(texts):
        if _BOX in text and _HEAD in text:
            continue  # rich draws its head around it
        if (at := text.find(_HEAD)) > 0 and at <= LONGEST:
            heads.setdefault(_shape(text[:at]), text[:at])
        elif 'File "' in text and (m := _FRAME.search(text)) is not None and 0 < m.start() <= LONGEST:
            margin = text[: m.start()]
            if frames.setdefault(_shape(margin), margin) is not margin or _begins_alike(texts[number + 1 : number + 4], margin):
                below.add(_shape(margin))
        elif ".py" in text and (m := _FLUSH.search(text)) is not None and 0 < m.start() <= LONGEST and text[: m.start()].strip():
            flush.setdefault(_shape(text[: m.start()]), text[: m.start()])
    whole = {shape: margin for shape, margin in heads.items() if margin.strip() and any(f.startswith(shape) and not f[len(shape) :].strip() for f in frames)}
    rest = {s: m for s, m in frames.items() if s in below and m.strip() and not any(s.startswith(h) for h in whole)}
    taken = [*whole.values(), *flush.values(), *(_least(m, texts) for m in islice(rest.values(), MOST))]
    yield from (margin for raw in taken[:MOST] if (margin := _unlabelled(raw)).strip())


def _least(margin: str, texts: Sequence[str]) -> str:
    """A margin with as many spaces at its end as stand behind it on every line that has it: more of them are the frame's own."""
    mark = _pattern(margin.rstrip())
    behind = [len(rest) - len(rest.lstrip()) for text in texts if (m := mark.match(text)) is not None and (rest := text[m.end() :]).strip()]
    return margin.rstrip() + " " * min(behind, default=0)


def _shape(margin: str) -> str:
    return re.sub(r"\d+", "0", margin.lstrip())


def _begins_alike(texts: Sequence[str], margin: str) -> bool:
    shape = _shape(_unlabelled(margin)).rstrip()
    return any(_shape(text).startswith(shape) for text in texts)


def _unlabelled(margin: str) -> str:
    """A margin as far as it says nothing of rank or time: from there on the launcher's own prefixes begin."""
    for at in (0, *(m.end() for m in re.finditer(r"\s", margin))):
        if at < len(margin) and not margin[at].isspace() and split(f"{margin[at:]}x").text == "x":
            return margin[:at]
    return margin


def _pattern(margin: str) -> re.Pattern[str]:
    parts = [r"\d{1,20}" if run.isdigit() else r"\s{1,12}" if run.isspace() else re.escape(run) for run in _RUNS.findall(margin.strip())]
    behind = len(margin) - len(margin.rstrip())
    return re.compile(r"\s{0,12}" + "".join(parts) + (rf"(?:\s{{{behind}}}|\s*$)" if behind else ""))


def _taken(line: Prefix, patterns: Sequence[re.Pattern[str]]) -> Prefix:
    found = next((m for p in patterns if (m := p.match(line.text)) is not None), None)
    if found is None:
        return line
    inner = split(line.text[found.end() :])
    rank = line.rank if inner.rank is None else inner.rank
    return Prefix(rank, inner.stream or line.stream, line.stamp if line.stamp is not None else inner.stamp, inner.text)


def _dedented(lines: list[Prefix]) -> list[Prefix]:
    """Tracebacks that stand indented as a whole, moved to the left margin: from their head or first frame to the first line that is indented less."""
    out: list[Prefix] = []
    depth = 0
    for line in lines:
        text = line.text
        indent = len(text) - len(text.lstrip(" \t")) if text.strip() else None
        if indent is not None and indent < depth:
            depth = 0
        if not depth and indent:
            if text.startswith(_HEAD, indent) or (text.startswith(_BOX, indent) and _HEAD in text):
                depth = indent
            elif indent > STEP and text.startswith('File "', indent) and _FRAME.match(text, indent) and not _in_a_traceback(out, indent):
                depth = indent - STEP
        out.append(Prefix(line.rank, line.stream, line.stamp, text[depth:]) if depth and indent is not None else line)
    return out


def _in_a_traceback(above: Sequence[Prefix], indent: int) -> bool:
    """Whether a frame's head or another frame stands above it further to the left: then its indentation is its own."""
    places = [(line.text.find(_HEAD), line.text.find('File "')) for line in above[-4:]]
    return any(0 <= head < indent - STEP or 0 <= frame < indent for head, frame in places)
