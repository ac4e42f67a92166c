"""What the caching allocator needs for a sequence of requests that come and go: blocks of one size do not always serve another.

Rules of c10/cuda/CUDACachingAllocator.cpp for its large pool: the smallest free piece that is large enough, split where more than 1 MiB is left,
merged with free neighbours of the same segment; else a new segment (20 MiB below 10 MiB, above rounded to 2 MiB).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from advisor.arithmetic.blocks.tape import Counted, Size
from advisor.units import MIB

Event = tuple[int, int]  # (id, bytes): a birth; (id, 0): its death

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
    free: list[tuple[int, int]] = []  # (room, start), smallest first; segments are far apart, so that a place says its segment
    starts: dict[int, int] = {}  # of free pieces: start -> room
    ends: dict[int, int] = {}  # end -> start
    held: dict[int, tuple[int, int, int]] = {}  # id -> start, bytes taken, bytes asked for
    reserved = alive = peak = place = 0

    def put(start: int, room: int) -> None:
        insort(free, (room, start))
        starts[start], ends[start + room] = room, start

    def take(start: int) -> int:
        room = starts.pop(start)
        del ends[start + room]
        del free[bisect_left(free, (room, start))]
        return room

    for number, size in events:
        if size:
            at = bisect_left(free, (size, 0))
            if at < len(free):
                start = free[at][1]
                room = take(start)
            else:
                room = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
                start, place = place, place + room + 1
                reserved += room
            taken = size if room - size > MIB else room
            if room > taken:
                put(start + taken, room - taken)
            held[number] = (start, taken, size)
            alive += size
            peak = max(peak, alive)
        elif number in held:
            start, taken, asked = held.pop(number)
            alive -= asked
            if start + taken in starts:
                taken += take(start + taken)
            before = ends.get(start)
            if before is not None:
                taken += take(before)
                start = before
            put(start, taken)
    return reserved, peak
