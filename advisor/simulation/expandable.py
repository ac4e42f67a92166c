"""Expandable segments: each pool is one range of addresses, in which pages are mapped where a request needs them.

Rules: c10/cuda/CUDACachingAllocator.cpp ``try_allocate_expandable_block``, ``map_block``, ``unmap_block`` (torch 2.4 and 2.14). How much is mapped
in all, and may be, is known to :mod:`advisor.simulation.allocator` alone.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.simulation.blocks import ADDRESS_BITS, ADDRESSES, MIDDLE_SEGMENT, SMALL_SEGMENT, Block, Pool, placed

ADDRESS_SPACE = 1 << 40  # of a pool; torch takes 9/8 of the card
Map = Callable[[int, int], bool]  # address and bytes; False where the card is full


def expand(pool: Pool, size: int, fresh: Callable[[Pool], Block], map_pages: Map) -> Block | None:
    """A mapped block of at least ``size``, in no list; None where the card is full."""
    block = _room(pool, size) or fresh(pool)
    page = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT
    has = 0
    if block.mapped:
        pool.take(block)
        has = block.place >> ADDRESS_BITS
    while has < size:
        hole = block.next if has else block
        assert hole is not None and not hole.mapped
        address, room = hole.place & ADDRESSES, hole.place >> ADDRESS_BITS
        added = min(-(-(size - has) // page) * page, room)
        if not map_pages(address, added):
            if has:
                pool.put(block)
            return None
        del pool.unmapped[address]
        if has and added < room:  # the block before grows into it
            has += added
            block.place += placed(added, 0)
            hole.place = placed(room - added, address + added)
            pool.unmapped[address + added] = hole
            continue
        if added < room:
            rest = pool.split(hole, added)
            pool.unmapped[rest.address] = rest
        hole.mapped = True
        if hole is not block:
            pool.put(hole)
        pool.merge(block, block.next)
        pool.merge(block, block.next)  # what has been mapped may have ended at a free block
        has = block.size
    return block


def _room(pool: Pool, size: int) -> Block | None:
    """The lowest run of free and unmapped blocks with room for ``size``."""
    for address in sorted(pool.unmapped):
        start: Block = pool.unmapped[address]
        if start.previous is not None and start.previous.free:
            start = start.previous
        total, block = 0, start
        while block is not None and total < size and (block.free or not block.mapped):
            total, block = total + (block.place >> ADDRESS_BITS), block.next  # type: ignore[assignment]
        if total >= size:
            return start
    return None


def unmap(pool: Pool, block: Block) -> tuple[int, int] | None:
    """Return the whole pages within a free block: their address and bytes; None where there is no whole page."""
    page = SMALL_SEGMENT if pool.small else MIDDLE_SEGMENT
    first = block.segment + -(-(block.address - block.segment) // page) * page
    last = block.segment + (block.address + block.size - block.segment) // page * page
    if last <= first:
        return None
    pool.take(block)
    if last < block.address + block.size:
        pool.put(pool.split(block, last - block.address))
    if first > block.address:
        hole = pool.split(block, first - block.address)
        pool.put(block)
        block = hole
    block.mapped = False
    returned = block.address, block.size
    pool.merge(block, block.previous)
    pool.merge(block, block.next)
    pool.unmapped[block.address] = block
    return returned
