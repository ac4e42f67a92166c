"""The fast replay is the plain allocator, address by address: random streams under every setting, on several streams, on full cards."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.simulation import snapshot
from advisor.simulation.allocator import Caching
from advisor.simulation.allocator_settings import Settings
from advisor.simulation.replaying import replay
from advisor.simulation.storages import Event, Storage
from advisor.units import GIB, KIB, MIB

SETTINGS = [
    Settings(expandable=expandable, divisions=divisions, **split)
    for expandable in (False, True)
    for divisions in (0, 3, 4, 16)
    for split in ({}, {"max_split": 21 * MIB}, {"max_split": 128 * MIB})
]
SIZES = st.one_of(
    st.integers(0, 3 * KIB), st.integers(1, 3 * MIB), st.integers(1, 300 * MIB), st.sampled_from([MIB, MIB + 1, 10 * MIB, 10 * MIB - 511, 20 * MIB, 112 * MIB])
)
STEPS = st.lists(st.tuples(SIZES, st.integers(0, 40), st.integers(0, 2)), max_size=120)  # a request's bytes, which of the living dies before it, its stream
Stream = tuple[list[tuple[bool, int]], dict[int, int], dict[int, int]]


def _stream(steps: Sequence[tuple[int, int, int]]) -> Stream:
    events: list[tuple[bool, int]] = []
    alive: list[int] = []
    for number, (_, dies, _) in enumerate(steps):
        if dies < len(alive):
            events.append((True, alive.pop(dies)))
        events.append((False, number))
        alive.append(number)
    return events, dict(enumerate(size for size, _, _ in steps)), {n: stream for n, (_, _, stream) in enumerate(steps) if stream}


def _plainly(stream: Stream, settings: Settings, capacity: int | None) -> Caching:
    events, sizes, streams = stream
    plain = Caching(capacity=capacity, settings=settings, trace=[])
    for free, number in events:
        if free:
            plain.free(number)
        elif not plain.allocate(number, sizes[number], streams.get(number, 0)):
            break
    return plain


def _state(allocator: Caching, sizes: dict[int, int]) -> dict[str, Any]:
    storages = {n: Storage(size, size, "empty", "forward", 0, "", (size,), "uint8") for n, size in sizes.items()}
    counted = {name: getattr(allocator, name) for name in ("allocated", "reserved", "max_allocated", "max_reserved", "retries", "failed", "granted")}
    pools = {key: (pool.order, [b.place for b in pool.held], sorted(pool.unmapped)) for key, pool in allocator.pools.items()}
    return {**counted, "pools": pools, "blocks": {n: b.place for n, b in allocator.blocks.items()}, "snapshot": snapshot.of(allocator, storages)}


def _alike(stream: Stream, settings: Settings, capacity: int | None = None) -> Caching:
    plain = _plainly(stream, settings, capacity)
    events, sizes, streams = stream
    fast = replay([Event(*event) for event in events], sizes, settings=settings, streams=streams, capacity=capacity, trace=True)
    assert _state(fast, sizes) == _state(plain, sizes)
    quiet = replay(events, sizes, settings=settings, streams=streams, capacity=capacity)
    assert (quiet.max_reserved, quiet.max_allocated, quiet.granted) == (plain.max_reserved, plain.max_allocated, plain.granted)
    return plain


@given(STEPS, st.sampled_from(SETTINGS), st.one_of(st.none(), st.integers(100 * MIB, 2 * GIB)))
def test_random_streams(steps: list[tuple[int, int, int]], settings: Settings, capacity: int | None) -> None:
    _alike(_stream(steps), settings, capacity)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_long_streams_that_split_and_merge(settings: Settings) -> None:
    """Few sizes, as layers have them, so that blocks are cut, joined and taken whole a thousand times; on a card with room, and on one that fills up."""
    drawn = random.Random(5)
    sizes = [drawn.choice((512, 8 * KIB, MIB // 2, 3 * MIB, 8 * MIB, 32 * MIB, 33 * MIB, 112 * MIB, 501 * MIB)) for _ in range(2000)]
    steps = [(size, int(drawn.triangular(0, 60, 0)), int(drawn.random() < 0.1)) for size in sizes]
    whole = _alike(_stream(steps), settings)
    assert whole.failed is None
    tight = _alike(_stream(steps), settings, whole.max_allocated + 64 * MIB)
    assert tight.retries
