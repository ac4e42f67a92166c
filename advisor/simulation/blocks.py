"""Blocks of memory in pools: the caching allocator's free lists, ordered by size and then by address.

A free block's place in that order is one number, size before address, which lists keep and bisect faster than pairs.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from advisor.units import MIB

ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB
ADDRESS_BITS = 56  # of a place in the order: addresses here begin below 2^47, and a pool's range of them is 2^40
ADDRESSES = (1 << ADDRESS_BITS) - 1


def placed(size: int, address: int) -> int:
    """A block's place in the order of best fits, both in bytes: by size, then by address."""
    return size << ADDRESS_BITS | address


@dataclass(slots=True, eq=False)
class Block:
    """A range of addresses within a segment; neighbours are linked. ``mapped`` False: address space without memory (expandable segments)."""

    place: int
    segment: int
    pool: Pool
    previous: Block | None = None
    next: Block | None = None
    free: bool = False
    mapped: bool = True
    expandable: bool = False
    requested: int = 0
    owner: int = -1

    @property
    def address(self) -> int:
        """Its first byte."""
        return self.place & ADDRESSES

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.place >> ADDRESS_BITS


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks of one stream and one size class, best fit first."""

    small: bool
    stream: int = 0
    order: list[int] = field(default_factory=list)
    held: list[Block] = field(default_factory=list)  # the blocks, beside their places in the order
    unmapped: dict[int, Block] = field(default_factory=dict)  # by address

    def put(self, block: Block) -> None:
        """Make a block free to take."""
        block.free = True
        index = bisect_left(self.order, block.place)
        self.order.insert(index, block.place)
        self.held.insert(index, block)

    def take(self, block: Block) -> None:
        """Remove a block from the free ones."""
        index = bisect_left(self.order, block.place)
        del self.order[index], self.held[index]
        block.free = False

    def unstretched(self, index: int) -> int:
        """The first fit from ``index`` on that is not at the end of mapped memory, where it could become larger than the next fit."""
        block = self.held[index]
        while block.expandable and index + 1 < len(self.held) and _could_be(block) > _could_be(self.held[index + 1]):
            index += 1
            block = self.held[index]
        return index

    def merge(self, block: Block, other: Block | None) -> None:
        """Grow a block (in no list) over a free neighbour that is alike mapped; the neighbour leaves its list."""
        if other is None or not (other.free or not other.mapped) or other.mapped != block.mapped:
            return
        if other.mapped:
            self.take(other)
        else:
            del self.unmapped[other.address]
        if other is block.previous:
            block.previous = other.previous
            if block.previous is not None:
                block.previous.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.previous = block
        block.place = placed(block.size + other.size, min(block.address, other.address))

    def split(self, block: Block, size: int) -> Block:
        """Cut a block to ``size``; returns the rest, linked behind it and in no list."""
        after = block.next
        place = placed(block.size - size, block.address + size)
        rest = Block(place, block.segment, self, block, after, False, block.mapped, block.expandable)
        if after is not None:
            after.previous = rest
        block.next, block.place = rest, placed(size, block.address)
        return rest


def _could_be(block: Block) -> int:
    hole = block.next
    size = block.place >> ADDRESS_BITS
    return size if hole is None or hole.mapped else size + (hole.place >> ADDRESS_BITS)
