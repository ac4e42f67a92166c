"""A model of PyTorch's CUDA caching allocator: replays births and deaths and says what it reserves.

Rules (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h, torch 2.14): requests are rounded up to 512 B; up to 1 MiB comes from
2 MiB segments (the small pool); below 10 MiB from 20 MiB segments; larger ones from segments rounded to 2 MiB. The best fit is the smallest
free block that is large enough; a block is split when more than 512 B (small) or 1 MiB (large) would be left; neighbours of a freed
block are merged. With expandable segments a pool is one growing segment, mapped in 2 MiB (small) or 20 MiB (large) pages. When the card
is full, segments that are wholly free are returned before giving up. One stream; ``record_stream`` delays are not modelled.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from advisor.units import MIB

ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
PAGE = 2 * MIB


@dataclass(slots=True)
class _Block:
    segment: int
    start: int
    size: int
    previous: _Block | None = None
    next: _Block | None = None
    free: bool = False


@dataclass(slots=True)
class Caching:
    """The allocator's state: :meth:`allocate` and :meth:`free` by id; sizes in bytes."""

    capacity: int | None = None
    expandable: bool = False
    allocated: int = 0
    reserved: int = 0
    max_allocated: int = 0
    max_reserved: int = 0
    retries: int = 0
    failed: int | None = None  # the first request that could not be met
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _free: dict[bool, list[tuple[int, int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _by_place: dict[tuple[int, int], _Block] = field(default_factory=dict)
    _segments: dict[int, tuple[int, bool]] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, number: int, size: int) -> bool:
        """Serve a request; False (and :attr:`failed`) where the card is full even after returning free segments."""
        size = max(ROUND, -(-size // ROUND) * ROUND)
        small = size <= SMALL
        block = self._best_fit(size, small) or self._grow(size, small)
        if block is None:
            self.failed = self.failed or size
            return False
        rest = block.size - size
        if rest >= ROUND if small or self.expandable else rest > SMALL:
            self._split(block, size, small)
        block.free = False
        self._blocks[number] = block
        self.allocated += block.size
        self.max_allocated = max(self.max_allocated, self.allocated)
        return True

    def free(self, number: int) -> None:
        """Give a block back to its pool, merged with its free neighbours."""
        block = self._blocks.pop(number, None)
        if block is None:
            return
        self.allocated -= block.size
        small = self._segments[block.segment][1]
        block.free = True
        for other in (block.previous, block.next):
            if other is not None and other.free:
                self._take(other, small)
                block = self._merge(block, other)
        self._put(block, small)

    def stranded(self) -> int:
        """Bytes reserved and not allocated."""
        return self.reserved - self.allocated

    def _put(self, block: _Block, small: bool) -> None:
        bisect.insort(self._free[small], (block.size, block.segment, block.start))
        self._by_place[(block.segment, block.start)] = block

    def _take(self, block: _Block, small: bool) -> None:
        pool = self._free[small]
        at = bisect.bisect_left(pool, (block.size, block.segment, block.start))
        pool.pop(at)
        del self._by_place[(block.segment, block.start)]

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        pool = self._free[small]
        at = bisect.bisect_left(pool, (size, -1, -1))
        if at == len(pool):
            return None
        _, segment, start = pool[at]
        block = self._by_place[(segment, start)]
        self._take(block, small)
        return block

    def _grow(self, size: int, small: bool) -> _Block | None:
        wanted = SMALL_SEGMENT if small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // PAGE) * PAGE
        if self.expandable:
            return self._extend(size, small)
        if not self._room(wanted):
            return None
        segment = self._next
        self._next += 1
        self._segments[segment] = (wanted, small)
        self._reserve(wanted)
        return _Block(segment, 0, wanted)

    def _extend(self, size: int, small: bool) -> _Block | None:
        segment = 0 if small else 1
        page = PAGE if small else MIDDLE_SEGMENT
        length = self._segments.get(segment, (0, small))[0]
        tail = next((b for (s, start), b in reversed(self._by_place.items()) if s == segment and start + b.size == length), None)
        have = tail.size if tail is not None else 0
        added = -(-(size - have) // page) * page
        if not self._room(added):
            return None
        self._segments[segment] = (length + added, small)
        self._reserve(added)
        if tail is not None:
            self._take(tail, small)
            tail.size += added
            return tail
        return _Block(segment, length, added)

    def _room(self, wanted: int) -> bool:
        if self.capacity is None or self.reserved + wanted <= self.capacity:
            return True
        self.retries += 1
        self._return_free_segments()
        return self.reserved + wanted <= self.capacity

    def _return_free_segments(self) -> None:
        if self.expandable:
            return
        for (segment, start), block in list(self._by_place.items()):
            size, small = self._segments[segment]
            if start == 0 and block.size == size:
                self._take(block, small)
                del self._segments[segment]
                self.reserved -= size

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.max_reserved = max(self.max_reserved, self.reserved)

    def _split(self, block: _Block, size: int, small: bool) -> None:
        rest = _Block(block.segment, block.start + size, block.size - size, previous=block, next=block.next, free=True)
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        self._put(rest, small)

    def _merge(self, one: _Block, other: _Block) -> _Block:
        first, second = (one, other) if one.start < other.start else (other, one)
        first.size += second.size
        first.next = second.next
        if second.next is not None:
            second.next.previous = first
        first.free = True
        return first


def replay(events: Iterable[tuple[bool, int]], sizes: dict[int, int], *, capacity: int | None = None, expandable: bool = False) -> Caching:
    """Replay ``(free, id)`` events with the sizes of their storages; stops at the first request that can not be met."""
    allocator = Caching(capacity=capacity, expandable=expandable)
    for free, number in events:
        if free:
            allocator.free(number)
        elif not allocator.allocate(number, sizes[number]):
            break
    return allocator
