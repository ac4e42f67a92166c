"""The order in which a rank runs its micro batches under torch's own pipeline schedules, and what is alive at each of them.

Source: torch distributed/pipelining/schedules.py (2.13) ``Schedule1F1B._step_microbatches``: ``stages - rank`` micro batches forward, then one backward
and one forward in turn; ``ScheduleInterleaved1F1B``: rounds of ``micro batches // max(1, micro batches // ranks)``, of which
``(chunks - 1) x a round + 2 (ranks - 1 - rank)`` chunks run ahead (``_get_warmup_ops``), then one forward and one backward in turn.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

MOST = 4096  # operations of a step that are looked at: a step of more repeats what has been seen


class Pass(Struct, frozen=True):
    """One forward or backward pass of one chunk, and the passes finished before it, by chunk."""

    backward: bool
    chunk: int
    forwards: tuple[int, ...]
    backwards: tuple[int, ...]

    def alive(self, chunk: int) -> int:
        """Micro batches of a chunk that have begun their forward pass and not ended their backward pass."""
        return self.forwards[chunk] - self.backwards[chunk] + (not self.backward and chunk == self.chunk)


@lru_cache(maxsize=256)
def passes(ranks: int, rank: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
    """A step's passes on one rank, in order; of a step with the same counts over and over, the first ones."""
    return tuple(_counted(_order(ranks, rank, chunks, micro_batches)[:MOST], chunks))


def _order(ranks: int, rank: int, chunks: int, micro_batches: int) -> list[tuple[bool, int]]:
    """``(backward, chunk)`` of each pass."""
    every = chunks * micro_batches
    if chunks == 1:
        ahead = min(micro_batches, ranks - rank)
        turns = [(True, 0), (False, 0)] * (every - ahead)
        return [(False, 0)] * ahead + turns + [(True, 0)] * ahead
    of_round = micro_batches // max(1, micro_batches // ranks)
    ahead = min((chunks - 1) * of_round + 2 * (ranks - 1 - rank), every)

    def forward(number: int) -> tuple[bool, int]:
        return False, number // of_round % chunks

    def backward(number: int) -> tuple[bool, int]:
        return True, chunks - 1 - number // of_round % chunks

    order = [forward(number) for number in range(ahead)]
    for number in range(every):
        if ahead + number < every:
            order.append(forward(ahead + number))
        order.append(backward(number))
    return order


def _counted(order: list[tuple[bool, int]], chunks: int) -> list[Pass]:
    done = ([0] * chunks, [0] * chunks)
    found = []
    for backward, chunk in order:
        found.append(Pass(backward, chunk, tuple(done[0]), tuple(done[1])))
        done[backward][chunk] += 1
    return found
