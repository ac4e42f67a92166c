"""What the caching allocator needs for a sequence of requests that come and go: blocks of one size do not always serve another.

Rules of c10/cuda/CUDACachingAllocator.cpp for its large pool: the smallest free piece that is large enough, split where more than 1 MiB is left,
merged with free neighbours of the same segment; else a new segment (20 MiB below 10 MiB, above rounded to 2 MiB).
"""

from __future__ import annotations

from collections.abc import Iterable

from advisor.arithmetic.blocks.tape import Counted, Size
from advisor.units import MIB

Event = tuple[int, int]  # (id, bytes): a birth; (id, 0): its death
Piece = tuple[int, int]  # start within the segment, size


REFERENCE_TOKENS, REFERENCE_KEYS = 4096, 2048  # two sequences: what the share is taken at; block sizes grow with tokens, so it hardly moves
_KNOWN: dict[int, tuple[Counted, float]] = {}
_MOST_KNOWN = 2048


def stranded(block: Counted) -> float:
    """Reserved over alive of a block's forward pass that keeps nothing: its pieces of many sizes serve each other only in part. Remembered by block."""
    known = _KNOWN.get(id(block))
    if known is not None and known[0] is block:
        return known[1]
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    reserved, alive = needed((number, _at_reference(size)) for number, size in block.passing)
    share = reserved / alive if alive else 1.0
    _KNOWN[id(block)] = (block, share)
    return share


def _at_reference(size: Size) -> int:
    return round(size[0] * REFERENCE_TOKENS + size[1] * REFERENCE_TOKENS * REFERENCE_KEYS + size[2] + size[3])


def needed(events: Iterable[Event]) -> tuple[int, int]:
    """Bytes reserved for a sequence, and the most that were alive at once."""
    free: list[list[Piece]] = []  # of each segment, in order
    held: dict[int, tuple[int, int, int, int]] = {}  # id -> segment, start, bytes taken, bytes asked for
    reserved = alive = peak = 0
    for number, size in events:
        if size:
            found = _best(free, size)
            if found is None:
                whole = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
                reserved += whole
                free.append([(0, whole)])
                found = (len(free) - 1, 0)
            segment, index = found
            start, room = free[segment].pop(index)
            taken = size if room - size > MIB else room
            if room > taken:
                free[segment].insert(index, (start + taken, room - taken))
            held[number] = (segment, start, taken, size)
            alive += size
            peak = max(peak, alive)
        elif number in held:
            segment, start, taken, asked = held.pop(number)
            free[segment] = _merged(sorted((*free[segment], (start, taken))))
            alive -= asked
    return reserved, peak


def _best(free: list[list[Piece]], size: int) -> tuple[int, int] | None:
    best: tuple[int, int, int] | None = None
    for segment, pieces in enumerate(free):
        for index, (_, room) in enumerate(pieces):
            if room >= size and (best is None or room < best[0]):
                best = (room, segment, index)
    return None if best is None else (best[1], best[2])


def _merged(pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for start, size in pieces:
        if out and out[-1][0] + out[-1][1] == start:
            out[-1] = (out[-1][0], out[-1][1] + size)
        else:
            out.append((start, size))
    return out
