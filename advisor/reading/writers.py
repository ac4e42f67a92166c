"""Who wrote which line of a traceback, where a label stands before some of its lines only.

A launcher labels every line of a rank, but people paste some with it and some without: two boxes of an issue, an editor's find and replace, a
terminal that showed one part and a log file that held the other. Lines of one traceback that stand in one piece and name one writer are all of his.
Where two writers are labelled among them, or a second traceback begins before the first has ended, nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from advisor.reading.lines import LogLine
from advisor.reading.tracebacks import exception_of, frame_of, raised_in

_HEAD = "Traceback (most recent call"


def settled(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """The lines, with the stream and the rank of the labelled lines of a traceback on those that bear no label."""
    if len({line.stream for line in lines}) < 2 or not any(not line.stream for line in lines):
        return lines
    out = list(lines)
    for block in _blocks(lines):
        streams = {lines[index].stream for index in block}
        named = streams - {""}
        if "" not in streams or len(named) != 1:
            continue
        stream = named.pop()
        rank = next((lines[index].rank for index in block if lines[index].rank is not None), None)
        for index in block:
            if not lines[index].stream:
                out[index] = replace(lines[index], stream=stream, rank=rank)
    return out


def _blocks(lines: Sequence[LogLine]) -> Iterator[list[int]]:
    """The indices of each traceback that stands in one piece, its error line included."""
    block: list[int] = []
    frames = 0
    mixed = named = False
    for index, line in enumerate(lines):
        text = line.text
        head, frame, above = _HEAD in text, frame_of(line, "") is not None, named
        named = frame
        if block and line.number > lines[block[-1]].number + 3:
            yield from () if mixed else (block,)
            block, frames, mixed = [], 0, False
        if head and block and (line.stream != lines[block[-1]].stream or not frames):
            mixed = True  # a second writer begins before the first has ended
        elif head and block:
            yield from () if mixed else (block,)
            block, frames, mixed = [], 0, False
        if head or frame:
            block.append(index)
            frames += frame
        elif block and (raised_in(text) is not None if frames else exception_of(text) is not None):
            yield from () if mixed else ([*block, index],)
            block, frames, mixed = [], 0, False
        elif block and (not text.strip() or text[:1].isspace() or text[:1] in "│|^~-" or above):
            block.append(index)
        elif block:
            yield from () if mixed else (block,)
            block, frames, mixed = [], 0, False
    yield from (block,) if block and not mixed else ()
