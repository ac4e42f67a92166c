"""A recorded stream through the model of the caching allocator, a million events a second and more.

What :class:`advisor.simulation.allocator.Caching` says plainly, written as one loop for the two things that happen at nearly every event: a fit
is found and cut, and a freed block is joined to its neighbours. All that is rarer (a new segment, mapped pages, a full card) is the plain
code's own. Both leave the same state behind, address by address (held by a test on random streams under every setting).

What makes it fast: a size is rounded and classed once, not at each request; the rest of a cut block, and a free block that grows, keep their
object and mostly their place in the order; blocks that were joined away serve again; nothing is called that is not of the interpreter's own.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from advisor.simulation.allocator import Caching
from advisor.simulation.allocator_settings import UNLIMITED, Settings
from advisor.simulation.blocks import ADDRESS_BITS, ADDRESSES, MIDDLE_SEGMENT, ROUND, SMALL, Block, Pool, placed

SIZES = UNLIMITED - 1 << ADDRESS_BITS  # the size in a place
FRONT = (1 << ADDRESS_BITS) - 1  # a byte cut from a free block's front: one less of its size, one more of its address, in its place in the order
Class = tuple[int, int, int, int, int, list[int], list[Block], Pool]


def replay(
    events: Iterable[tuple[bool, int]], sizes: Mapping[int, int], *,
    capacity: int | None = None, settings: Settings | None = None, streams: Mapping[int, int] | None = None, trace: bool = False,
) -> Caching:  # fmt: skip
    """Replay ``(free, id)`` events with the sizes in bytes (and streams) of their storages; stops at the first request that can not be met."""
    allocator = Caching(capacity=capacity, settings=settings or Settings(), trace=[] if trace else None)
    collecting = gc.isenabled()
    gc.disable()  # blocks live and end by their count; the collector would walk them again and again, with all that the probe has loaded
    try:
        _run(allocator, events, sizes, streams or {})
    finally:
        if collecting:
            gc.enable()
    return allocator


def _class(allocator: Caching, requested: int, stream: int) -> Class:
    """A request's size in bytes and its place in the order, from which place on a block is cut or is too large to serve it, what cutting takes
    from the place, and the pool."""
    settings = allocator.settings
    size = settings.rounded(requested)
    pool = allocator.pool(size, stream)
    least = ROUND if pool.small or settings.expandable else SMALL + 1 if size < settings.max_split else UNLIMITED
    limit = UNLIMITED if settings.max_split == UNLIMITED else max(settings.max_split, 0 if size < settings.max_split else size + MIDDLE_SEGMENT)
    return size, placed(size, 0), placed(size + least, 0), placed(limit, 0), size * FRONT, pool.order, pool.held, pool


def _run(allocator: Caching, events: Iterable[tuple[bool, int]], sizes: Mapping[int, int], streams: Mapping[int, int]) -> None:
    find = bisect_left
    expandable, trace, blocks, granted = allocator.settings.expandable, allocator.trace, allocator.blocks, allocator.granted
    allocated, most = allocator.allocated, allocator.max_allocated
    classes: dict[int, dict[int, Class]] = {}
    known, stream = classes.setdefault(0, {}), 0
    lose = blocks.pop
    spare: list[Block] = []  # joined away
    for event in events:
        number = event[1]
        if event[0]:
            found = lose(number, None)
            if found is None:
                continue
            block = found
            allocated -= granted[number]
            if trace is not None:
                trace += [(action, block.address, sizes[number], number) for action in ("free_requested", "free_completed")]
            before, after, pool = block.previous, block.next, block.pool
            order, held = pool.order, pool.held
            if after is not None and after.free:
                place = after.place
                index = find(order, place)
                spare.append(block)
                if before is not None and before.free:
                    del order[index], held[index]
                    spare.append(after)
                    grown = before.place + (block.place & SIZES) + (place & SIZES)
                    before.next = after = after.next
                    if after is not None:
                        after.previous = before
                    block = before
                    index = find(order, block.place)
                else:
                    grown = block.place + (place & SIZES)
                    after.previous = before
                    if before is not None:
                        before.next = after
                    block = after
            elif before is not None and before.free:
                spare.append(block)
                before.next = after
                if after is not None:
                    after.previous = before
                index = find(order, before.place)
                grown = before.place + (block.place & SIZES)
                block = before
            else:
                block.free = True
                place = block.place
                index = find(order, place)
                order.insert(index, place)
                held.insert(index, block)
                continue
            block.place = grown
            other = index + 1
            if other == len(order) or order[other] > grown:
                order[index] = grown
            else:
                del order[index], held[index]
                index = find(order, grown, index)
                order.insert(index, grown)
                held.insert(index, block)
        else:
            requested = sizes[number]
            if streams:
                stream = streams.get(number, 0)
                known = classes.get(stream) or classes.setdefault(stream, {})
            try:
                kind = known[requested]
            except KeyError:
                kind = known[requested] = _class(allocator, requested, stream)
            size, place, cut, limit, front, order, held, pool = kind
            index = find(order, place)
            if index < len(order):
                block = held[index]
                if expandable and (after := block.next) is not None and not after.mapped and index + 1 < len(order):
                    index = pool.unstretched(index)
                    block = held[index]
                whole = order[index]
            else:
                whole = limit
            if whole >= limit:
                found = allocator.new(pool, size)
                if found is None:
                    allocator.failed = allocator.failed or size
                    break
                block = found
                whole = block.place
                if whole >= cut:  # free for a moment, to be cut as any other
                    block.free = True
                    index = find(order, whole)
                    order.insert(index, whole)
                    held.insert(index, block)
            if whole >= cut:
                before, after = block.previous, block
                place += whole & ADDRESSES
                if spare:
                    block = spare.pop()
                    block.place, block.segment, block.pool, block.free, block.previous, block.next = place, after.segment, pool, False, before, after
                else:
                    block = Block(place, after.segment, pool, before, after, expandable=expandable)
                if before is not None:
                    before.next = block
                after.previous = block
                after.place = whole = whole - front
                if index and order[index - 1] > whole:
                    del order[index], held[index]
                    index = find(order, whole, 0, index)
                    order.insert(index, whole)
                    held.insert(index, after)
                else:
                    order[index] = whole
            else:
                if block.free:
                    del order[index], held[index]
                    block.free = False
                size = whole >> ADDRESS_BITS
            blocks[number] = block
            granted[number] = size
            allocated += size
            if allocated > most:
                most = allocated
            if trace is not None:
                trace.append(("alloc", block.address, requested, number))
    allocator.allocated, allocator.max_allocated = allocated, most
    for number, block in blocks.items():
        block.owner, block.requested = number, sizes[number]
