"""A replay of the caching allocator's rules, for figures that no closed form gives.

Rules of c10/cuda/CUDACachingAllocator.cpp for its large pool: best fit among free blocks, split where more than 1 MiB is left, merge with free
neighbours, new segments of 20 MiB below 10 MiB and rounded to 2 MiB above.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass, field
from typing import Any

MIB = 1024**2


@dataclass(eq=False, slots=True)
class Block:
    size: int
    before: Block | None = None
    behind: Block | None = None
    free: bool = False
    number: int = 0

    def __lt__(self, other: Block) -> bool:
        return self.number < other.number


@dataclass
class Pool:
    free: list[tuple[int, int, Block]] = field(default_factory=list)
    reserved: int = 0
    allocated: int = 0
    peak: int = 0
    count: int = 0

    def malloc(self, size: int) -> Block:
        size = -(-size // 512) * 512
        i = bisect.bisect_left(self.free, size, key=lambda entry: entry[0])
        if i < len(self.free):
            block = self.free.pop(i)[2]
        else:
            segment = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.reserved += segment
            block = Block(segment)
        block.free = False
        if block.size - size > MIB:
            rest = Block(block.size - size, block, block.behind, free=True)
            if block.behind is not None:
                block.behind.before = rest
            block.behind, block.size = rest, size
            self._put(rest)
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def release(self, block: Block) -> None:
        self.allocated -= block.size
        block.free = True
        if block.behind is not None and block.behind.free:
            self._take(block.behind)
            block.size += block.behind.size
            block.behind = block.behind.behind
            if block.behind is not None:
                block.behind.before = block
        if block.before is not None and block.before.free:
            whole = block.before
            self._take(whole)
            whole.size += block.size
            whole.behind = block.behind
            if whole.behind is not None:
                whole.behind.before = whole
            block = whole
        self._put(block)

    def _put(self, block: Block) -> None:
        self.count += 1
        block.number = self.count
        bisect.insort(self.free, (block.size, block.number, block))

    def _take(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, (block.size, block.number, block))]


def step(pool: Pool, tokens: int, hidden: int, width: int, vocab: int, layers: int) -> None:
    """One step with full checkpointing: layer inputs, a block's tensors, logits with an fp32 loss, and the way back."""
    inside = [2 * hidden, hidden, hidden, hidden, hidden, hidden, width, width, width, width, hidden]
    kept = []
    for _ in range(layers):
        kept.append(pool.malloc(2 * tokens * hidden))
        for block in [pool.malloc(2 * tokens * n) for n in inside]:
            pool.release(block)
    logits, shifted, wide, probabilities = (pool.malloc(tokens * vocab * each) for each in (2, 2, 4, 4))
    grad = pool.malloc(tokens * vocab * 4)
    for old in (probabilities, wide, shifted):
        pool.release(old)
        after = pool.malloc(tokens * vocab * 2)
        pool.release(grad)
        grad = after
    hidden_grad = pool.malloc(2 * tokens * hidden)
    pool.release(grad)
    pool.release(logits)
    for _ in range(layers):
        running = [pool.malloc(2 * tokens * n) for n in (*inside, hidden, width, width)]
        after = pool.malloc(2 * tokens * hidden)
        for block in running:
            pool.release(block)
        pool.release(hidden_grad)
        hidden_grad = after
        pool.release(kept.pop())
    pool.release(hidden_grad)


def ratio(lengths: list[int], **shape: Any) -> float:
    """Reserved over the peak of what was allocated, after a step at each length."""
    pool = Pool()
    for tokens in lengths:
        step(pool, tokens, **shape)
    return pool.reserved / pool.peak


def drawn(longest: int, steps: int, seed: int, *, skewed: bool) -> list[int]:
    """Lengths, uniform from an eighth of the longest or log-normal and cut at it."""
    rng = random.Random(seed)
    if skewed:
        return [min(longest, int(longest * rng.lognormvariate(-0.8, 0.7)) + 16) for _ in range(steps)]
    return [rng.randint(longest // 8, longest) for _ in range(steps)]
