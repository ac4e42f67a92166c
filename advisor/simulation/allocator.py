"""A model of PyTorch's CUDA caching allocator: replays births and deaths and says what it reserves.

Rules (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h; read at torch 2.4 and 2.14): requests are rounded up to 512 B (or to
``roundup_power2_divisions``); up to 1 MiB comes from 2 MiB segments (the small pool), below 10 MiB from 20 MiB segments, larger ones from
segments rounded to 2 MiB. The best fit is the smallest free block that is large enough, of the same stream; it is split when at least 512 B
(small pool, or expandable segments) or more than 1 MiB would be left; neighbours of a freed block are merged. ``max_split_size_mb``:
larger blocks are never split, and serve only requests within 20 MiB of their size. With expandable segments each pool is one range of
addresses, mapped in 2 MiB (small) or 20 MiB (large) pages. When the card is full, what is wholly free is returned and asked for again.

Not modelled: ``record_stream`` delays; ``garbage_collection_threshold``, which does nothing unless the process sets a memory fraction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from advisor.simulation.blocks import LARGE_ROUND, MIDDLE, MIDDLE_SEGMENT, ROUND, SMALL, SMALL_SEGMENT, Block, Pool
from advisor.units import MIB

FIRST_ADDRESS = 0x7F00_0000_0000
ADDRESS_SPACE = 1 << 40  # of an expandable segment; torch takes 9/8 of the card
UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Settings:
    """``PYTORCH_ALLOC_CONF``, in bytes."""

    expandable: bool = False
    max_split: int = UNLIMITED
    divisions: int = 0

    @classmethod
    def of(cls, written: Mapping[str, Any], **changes: Any) -> Settings:
        """From the job's ``framework.allocator``."""
        split, divisions = written.get("max_split_size_mb"), written.get("roundup_power2_divisions")
        found = {
            "expandable": bool(written.get("expandable_segments", False)),
            "max_split": int(split) * MIB if split else UNLIMITED,
            "divisions": int(divisions) if isinstance(divisions, (int, float)) else 0,
        }
        return cls(**{**found, **changes})

    def rounded(self, size: int) -> int:
        """A request as the allocator serves it."""
        if self.divisions > 1 and size > ROUND * self.divisions:
            power = 1 << (size.bit_length() - 1)
            step = power // self.divisions
            return power if size == power else power + -(-(size - power) // step) * step
        return max(ROUND, -(-size // ROUND) * ROUND)


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
    pools: dict[tuple[int, bool], Pool] = field(default_factory=dict)
    _next_address: int = FIRST_ADDRESS

    def allocate(self, number: int, requested: int, stream: int = 0) -> bool:
        """Serve a request; False (and :attr:`failed`) where the card is full even after returning what is free."""
        size = self.settings.rounded(requested)
        small = size <= SMALL
        pool = self.pools.get((stream, small))
        if pool is None:
            pool = self.pools[(stream, small)] = Pool(small, stream)
        block = self._cached(pool, size) or self._new(pool, size)
        if block is None:
            self.failed = self.failed or size
            return False
        rest = block.size - size
        if (rest >= ROUND) if small or self.settings.expandable else (rest > SMALL and size < self.settings.max_split):
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
        self._note("free_requested", block.address, block.requested, number)
        self._note("free_completed", block.address, block.requested, number)
        block.pool.merge(block, block.previous)
        block.pool.merge(block, block.next)
        block.pool.put(block)

    def stranded(self) -> int:
        """Bytes reserved and not allocated."""
        return self.reserved - self.allocated

    def _note(self, action: str, address: int, size: int, number: int = -1) -> None:
        if self.trace is not None:
            self.trace.append((action, address, size, number))

    def _cached(self, pool: Pool, size: int) -> Block | None:
        block = pool.fitting(size, expandable=self.settings.expandable)
        if block is None:
            return None
        limit = self.settings.max_split
        if (size < limit <= block.size) or (size >= limit and block.size >= size + MIDDLE_SEGMENT):
            return None
        pool.take(block)
        return block

    def _new(self, pool: Pool, size: int) -> Block | None:
        block = self._segment(pool, size)
        if block is None:  # the card is full
            self.retries += 1
            self._return_free()
            block = self._segment(pool, size)
        return block

    def _segment(self, pool: Pool, size: int) -> Block | None:
        if self.settings.expandable:
            return self._expand(pool, size)
        wanted = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        if self.capacity is not None and self.reserved + wanted > self.capacity:
            return None
        block = Block(self._next_address, wanted, self._next_address, pool)
        self._next_address += wanted
        self._reserve(wanted)
        self._note("segment_alloc", block.address, wanted)
        return block

    def _expand(self, pool: Pool, size: int) -> Block | None:
        block = self._room(pool, size)
        page = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT
        if block.mapped:
            pool.take(block)
        while not block.mapped or block.size < size:
            hole = block if not block.mapped else block.next
            assert hole is not None and not hole.mapped
            missing = min(size if hole is block else size - block.size, hole.size)
            added = min(-(-missing // page) * page, hole.size)
            if self.capacity is not None and self.reserved + added > self.capacity:
                if block.mapped:
                    pool.put(block)
                return None
            del pool.unmapped[hole.address]
            if added < hole.size:
                rest = pool.split(hole, added)
                pool.unmapped[rest.address] = rest
            hole.mapped = True
            self._reserve(added)
            self._note("segment_map", hole.address, added)
            if hole is not block:
                pool.put(hole)
            pool.merge(block, block.next)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """The lowest run of free and unmapped blocks with room for ``size``; a new range of addresses where there is none."""
        for address in sorted(pool.unmapped):
            start: Block = pool.unmapped[address]
            if start.previous is not None and start.previous.free:
                start = start.previous
            total, block = 0, start
            while block is not None and total < size and (block.free or not block.mapped):
                total, block = total + block.size, block.next  # type: ignore[assignment]
            if total >= size:
                return start
        fresh = Block(self._next_address, ADDRESS_SPACE, self._next_address, pool, mapped=False, expandable=True)
        self._next_address += ADDRESS_SPACE
        pool.unmapped[fresh.address] = fresh
        return fresh

    def _return_free(self) -> None:
        for pool in self.pools.values():
            for block in list(pool.at.values()):
                if block.expandable:
                    self._unmap(pool, block)
                elif block.previous is None and block.next is None:
                    pool.take(block)
                    self.reserved -= block.size
                    self._note("segment_free", block.address, block.size)

    def _unmap(self, pool: Pool, block: Block) -> None:
        """Return the whole pages within a free block."""
        page = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT
        first = block.segment + -(-(block.address - block.segment) // page) * page
        last = block.segment + (block.address + block.size - block.segment) // page * page
        if last <= first:
            return
        pool.take(block)
        if last < block.address + block.size:
            pool.put(pool.split(block, last - block.address))
        if first > block.address:
            hole = pool.split(block, first - block.address)
            pool.put(block)
            block = hole
        block.mapped = False
        self.reserved -= block.size
        self._note("segment_unmap", block.address, block.size)
        pool.merge(block, block.previous)
        pool.merge(block, block.next)
        pool.unmapped[block.address] = block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.max_reserved = max(self.max_reserved, self.reserved)


def replay(
    events: Iterable[tuple[bool, int]], sizes: Mapping[int, int], *,
    capacity: int | None = None, settings: Settings | None = None, streams: Mapping[int, int] | None = None, trace: bool = False,
) -> Caching:  # fmt: skip
    """Replay ``(free, id)`` events with the sizes (and streams) of their storages; stops at the first request that can not be met."""
    allocator = Caching(capacity=capacity, settings=settings or Settings(), trace=[] if trace else None)
    for free, number in events:
        if free:
            allocator.free(number)
        elif not allocator.allocate(number, sizes[number], streams.get(number, 0) if streams else 0):
            break
    return allocator
