"""A model of PyTorch's CUDA caching allocator: replays births and deaths and says what it reserves.

Rules (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h; read at torch 2.4 and 2.14): requests are rounded up to 512 B (or to
``roundup_power2_divisions``); up to 1 MiB comes from 2 MiB segments (the small pool), below 10 MiB from 20 MiB segments, larger ones from
segments rounded to 2 MiB. The best fit is the smallest free block that is large enough, of the same stream; it is split when at least 512 B
(small pool, or expandable segments) or more than 1 MiB would be left; neighbours of a freed block are merged. ``max_split_size_mb``:
larger blocks are never split, and serve only requests within 20 MiB of their size. With expandable segments each pool is one range of
addresses, mapped in 2 MiB (small) or 20 MiB (large) pages. When the card is full, what is wholly free is returned and asked for again.

Not modelled: ``record_stream`` delays; ``garbage_collection_threshold``, which does nothing unless the process sets a memory fraction.

A large model's step is some ten thousand events, and several settings are replayed: :mod:`advisor.simulation.replaying` does the same faster.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from advisor.simulation import expandable
from advisor.simulation.allocator_settings import Settings
from advisor.simulation.blocks import LARGE_ROUND, MIDDLE, MIDDLE_SEGMENT, ROUND, SMALL, SMALL_SEGMENT, Block, Pool, placed

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
        size = settings.rounded(requested)
        pool = self.pool(size, stream)
        block = self._fit(pool, size) or self.new(pool, size)
        if block is None:
            self.failed = self.failed or size
            return False
        rest = block.size - size
        if rest >= ROUND and (pool.small or settings.expandable or (rest > SMALL and size < settings.max_split)):
            pool.put(pool.split(block, size))
        block.requested, block.owner = requested, number
        self.blocks[number] = block
        self.granted[number] = block.size
        self.allocated += block.size
        self.max_allocated = max(self.max_allocated, self.allocated)
        self._note("alloc", block.address, requested, number)
        return True

    def free(self, number: int) -> None:
        """Give a block back to its pool, merged with its free neighbours."""
        block = self.blocks.pop(number, None)
        if block is None:
            return
        self.allocated -= block.size
        for action in ("free_requested", "free_completed"):
            self._note(action, block.address, block.requested, number)
        block.pool.merge(block, block.previous)
        block.pool.merge(block, block.next)
        block.pool.put(block)

    def pool(self, size: int, stream: int) -> Pool:
        """The pool that serves requests of so many bytes, rounded, on a stream."""
        small = size <= SMALL
        return self.pools.setdefault(2 * stream + small, Pool(small, stream))

    def _fit(self, pool: Pool, size: int) -> Block | None:
        """The best fit among the free blocks, taken from them."""
        index = bisect_left(pool.order, placed(size, 0))
        if index == len(pool.order):
            return None
        block = pool.held[pool.unstretched(index)]
        most = self.settings.max_split
        if most <= block.size and (size < most or block.size >= size + MIDDLE_SEGMENT):
            return None
        pool.take(block)
        return block

    def stranded(self) -> int:
        """Bytes reserved and not allocated."""
        return self.reserved - self.allocated

    def new(self, pool: Pool, size: int) -> Block | None:
        """A block from the card, of at least so many bytes; None where it is full even after returning what is free."""
        block = self._segment(pool, size)
        if block is None:  # the card is full
            self.retries += 1
            self._return_free()
            block = self._segment(pool, size)
        return block

    def _note(self, action: str, address: int, size: int, number: int = -1) -> None:
        if self.trace is not None:
            self.trace.append((action, address, size, number))

    def _segment(self, pool: Pool, size: int) -> Block | None:
        if self.settings.expandable:
            return expandable.expand(pool, size, self._range, self._mapped)
        wanted = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        if not self._reserve("segment_alloc", self._next_address, wanted):
            return None
        block = Block(placed(wanted, self._next_address), self._next_address, pool)
        self._next_address += wanted
        return block

    def _range(self, pool: Pool) -> Block:
        """Addresses for a pool that has none with room, none of them mapped."""
        block = Block(placed(expandable.ADDRESS_SPACE, self._next_address), self._next_address, pool, mapped=False, expandable=True)
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
        if self.reserved > self.max_reserved:
            self.max_reserved = self.reserved
        self._note(action, address, size)
        return True

    def _return_free(self) -> None:
        for pool in self.pools.values():
            for block in list(pool.held):
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
