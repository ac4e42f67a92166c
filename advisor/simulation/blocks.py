"""Blocks of memory in pools: the caching allocator's free lists, ordered by size and then by address."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from advisor.units import MIB

ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """A range of addresses within a segment; neighbours are linked. ``mapped`` False: address space without memory (expandable segments)."""

    address: int
    size: int
    segment: int
    pool: Pool
    previous: Block | None = None
    next: Block | None = None
    free: bool = False
    mapped: bool = True
    expandable: bool = False
    requested: int = 0
    owner: int = -1


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks of one stream and one size class, best fit first."""

    small: bool
    stream: int = 0
    order: list[tuple[int, int]] = field(default_factory=list)
    at: dict[int, Block] = field(default_factory=dict)
    unmapped: dict[int, Block] = field(default_factory=dict)

    def put(self, block: Block) -> None:
        """Make a block free to take."""
        block.free = True
        bisect.insort(self.order, (block.size, block.address))
        self.at[block.address] = block

    def take(self, block: Block) -> None:
        """Remove a block from the free ones."""
        self.order.pop(bisect.bisect_left(self.order, (block.size, block.address)))
        del self.at[block.address]
        block.free = False

    def fitting(self, size: int, *, expandable: bool) -> Block | None:
        """The best fit: the smallest, lowest block that is large enough; of a block at an expandable end, what it could grow to counts."""
        index = bisect.bisect_left(self.order, (size, -1))
        if index == len(self.order):
            return None
        block = self.at[self.order[index][1]]
        while expandable and block.expandable and index + 1 < len(self.order):
            other = self.at[self.order[index + 1][1]]
            if _could_be(other) >= _could_be(block):
                break
            block, index = other, index + 1
        return block

    def merge(self, block: Block, other: Block | None) -> None:
        """Grow a block (in no list) over a free neighbour that is alike mapped; the neighbour leaves its list."""
        if other is None or not (other.free or not other.mapped) or other.mapped != block.mapped:
            return
        if other.mapped:
            self.take(other)
        else:
            del self.unmapped[other.address]
        if other is block.previous:
            block.address, block.previous = other.address, other.previous
            if block.previous is not None:
                block.previous.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.previous = block
        block.size += other.size

    def split(self, block: Block, size: int) -> Block:
        """Cut a block to ``size``; returns the rest, linked behind it and in no list."""
        rest = Block(block.address + size, block.size - size, block.segment, self, block, block.next, mapped=block.mapped, expandable=block.expandable)
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        return rest


def _could_be(block: Block) -> int:
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)
