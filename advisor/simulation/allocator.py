"""A model of PyTorch's CUDA caching allocator: replays births and deaths and says what it reserves.

Rules (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h; read at torch 2.4 and 2.14): requests are rounded up to 512 B (or to
``roundup_power2_divisions``); up to 1 MiB comes from 2 MiB segments (the small pool), below 10 MiB from 20 MiB segments, larger ones from
segments rounded to 2 MiB. The best fit is the smallest free block that is large enough, of the same stream; it is split when at least 512 B
(small pool, or expandable segments) or more than 1 MiB would be left; neighbours of a freed block are merged. ``max_split_size_mb``:
larger blocks are never split, and serve only requests within 20 MiB of their size. With expandable segments each pool is one range of
addresses, mapped in 2 MiB (small) or 20 MiB (large) pages. When the card is full, what is wholly free is returned and asked for again.

Not modelled: ``record_stream`` delays; ``garbage_collection_threshold``, which does nothing unless the process sets a memory fraction.

A large model's step is some ten thousand events, and several settings are replayed: what happens at every event is written out in
:meth:`Caching.allocate` and :meth:`Caching.free`, calls being half of the time; rarer things are functions.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from advisor.simulation import expandable
from advisor.simulation.allocator_settings import Settings
from advisor.simulation.blocks import ADDRESS_BITS, LARGE_ROUND, MIDDLE, MIDDLE_SEGMENT, ROUND, SMALL, SMALL_SEGMENT, Block, Pool

FIRST_ADDRESS = 0x7F00_0000_0000


@dataclass(slots=True)
class Caching:
    """The allocator's state: :meth:`allocate` and :meth:`free` by id; sizes in bytes. ``trace`` collects ``(action, address, size, id)``."""

    capacity: int | None = None
    settings: Settings = field(default_factory=Settings)
    allocated: int = 0
    reserved: int = 0
    max_allocated: int = 0
    max_reserved: int = 0
    retries: int = 0
    failed: int | None = None  # the first request that could not be met
    trace: list[tuple[str, int, int, int]] | None = None
    blocks: dict[int, Block] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)  # bytes that each request was counted with: a rest that is not split off included
    pools: dict[int, Pool] = field(default_factory=dict)  # by twice the stream, and one more for its small one
    _next_address: int = FIRST_ADDRESS

    def allocate(self, number: int, requested: int, stream: int = 0) -> bool:
        """Serve a request; False (and :attr:`failed`) where the card is full even after returning what is free."""
        settings = self.settings
        size = settings.rounded(requested) if settings.divisions else -(-requested // ROUND) * ROUND or ROUND
        small = size <= SMALL
        pool = self.pools.get(2 * stream + small)
        if pool is None:
            pool = self.pools[2 * stream + small] = Pool(small, stream)
        order, at = pool.order, pool.at
        index = bisect_left(order, size << ADDRESS_BITS)
        block: Block | None = None
        if index < len(order):
            block = at[order[index]]
            if (after := block.next) is not None and not after.mapped:
                index = pool.unstretched(index)
                block = at[order[index]]
            if settings.max_split <= block.size and (size < settings.max_split or block.size >= size + MIDDLE_SEGMENT):
                block = None
            else:
                del at[order.pop(index)]
                block.free = False
        if block is None:
            block = self._new(pool, size)
            if block is None:
                self.failed = self.failed or size
                return False
        rest = block.size - size
        if rest >= ROUND and (small or settings.expandable or (rest > SMALL and size < settings.max_split)):
            behind = pool.split(block, size)
            behind.free = True
            place = rest << ADDRESS_BITS | behind.address
            insort(order, place)
            at[place] = behind
        block.requested, block.owner = requested, number
        self.blocks[number] = block
        self.granted[number] = size = block.size
        self.allocated = allocated = self.allocated + size
        if allocated > self.max_allocated:
            self.max_allocated = allocated
        if self.trace is not None:
            self.trace.append(("alloc", block.address, requested, number))
        return True

    def free(self, number: int) -> None:
        """Give a block back to its pool, merged with its free neighbours."""
        block = self.blocks.pop(number, None)
        if block is None:
            return
        address, size, pool = block.address, block.size, block.pool
        self.allocated -= size
        if self.trace is not None:
            self.trace += (("free_requested", address, block.requested, number), ("free_completed", address, block.requested, number))
        order, at = pool.order, pool.at
        if (other := block.previous) is not None and other.free:
            address, more = other.address, other.size
            place = more << ADDRESS_BITS | address
            del order[bisect_left(order, place)], at[place]
            block.address, size = address, size + more
            other = block.previous = other.previous
            if other is not None:
                other.next = block
        if (other := block.next) is not None and other.free:
            more = other.size
            place = more << ADDRESS_BITS | other.address
            del order[bisect_left(order, place)], at[place]
            size += more
            other = block.next = other.next
            if other is not None:
                other.previous = block
        block.size, block.free = size, True
        place = size << ADDRESS_BITS | address
        insort(order, place)
        at[place] = block

    def stranded(self) -> int:
        """Bytes reserved and not allocated."""
        return self.reserved - self.allocated

    def _note(self, action: str, address: int, size: int) -> None:
        if self.trace is not None:
            self.trace.append((action, address, size, -1))

    def _new(self, pool: Pool, size: int) -> Block | None:
        block = self._segment(pool, size)
        if block is None:  # the card is full
            self.retries += 1
            self._return_free()
            block = self._segment(pool, size)
        return block

    def _segment(self, pool: Pool, size: int) -> Block | None:
        if self.settings.expandable:
            return expandable.expand(pool, size, self._range, self._mapped)
        wanted = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        if not self._reserve("segment_alloc", self._next_address, wanted):
            return None
        block = Block(self._next_address, wanted, self._next_address, pool)
        self._next_address += wanted
        return block

    def _range(self, pool: Pool) -> Block:
        """Addresses for a pool that has none with room, none of them mapped."""
        block = Block(self._next_address, expandable.ADDRESS_SPACE, self._next_address, pool, mapped=False, expandable=True)
        self._next_address += expandable.ADDRESS_SPACE
        pool.unmapped[block.address] = block
        return block

    def _mapped(self, address: int, size: int) -> bool:
        return self._reserve("segment_map", address, size)

    def _reserve(self, action: str, address: int, size: int) -> bool:
        """Ask the card for memory; False where it has not so much."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.max_reserved = max(self.max_reserved, self.reserved)
        self._note(action, address, size)
        return True

    def _return_free(self) -> None:
        for pool in self.pools.values():
            for block in list(pool.at.values()):
                if block.expandable:
                    returned, action = expandable.unmap(pool, block), "segment_unmap"
                elif block.previous is None and block.next is None:
                    pool.take(block)
                    returned, action = (block.address, block.size), "segment_free"
                else:
                    continue
                if returned is not None:
                    self.reserved -= returned[1]
                    self._note(action, *returned)


def replay(
    events: Iterable[tuple[bool, int]], sizes: Mapping[int, int], *,
    capacity: int | None = None, settings: Settings | None = None, streams: Mapping[int, int] | None = None, trace: bool = False,
) -> Caching:  # fmt: skip
    """Replay ``(free, id)`` events with the sizes (and streams) of their storages; stops at the first request that can not be met."""
    allocator = Caching(capacity=capacity, settings=settings or Settings(), trace=[] if trace else None)
    allocate, release = allocator.allocate, allocator.free
    collecting = gc.isenabled()
    gc.disable()  # blocks live and end by their count; the collector would walk them again and again, with all that the probe has loaded
    try:
        for free, number in events:
            if free:
                release(number)
            elif not allocate(number, sizes[number], streams.get(number, 0) if streams else 0):
                break
    finally:
        if collecting:
            gc.enable()
    return allocator
