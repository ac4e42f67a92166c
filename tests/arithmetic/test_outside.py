"""The allocator's cache, the context, and what a card's edge does."""

from __future__ import annotations

import statistics

from advisor.arithmetic import estimate
from advisor.arithmetic.outside import VARIED
from advisor.units import GIB
from tests.arithmetic.jobs import job
from tests.arithmetic.replay import drawn, ratio

SHAPES = [(4096, 11008, 151936, 2048), (4096, 11008, 64000, 8192), (4096, 14336, 32000, 4096)]


def test_varied_lengths_leave_more_in_the_cache_as_replayed() -> None:
    found = [
        ratio(drawn(longest, 150, seed, skewed=skewed), hidden=h, width=f, vocab=v, layers=4)
        for h, f, v, longest in SHAPES
        for seed in (0, 1)
        for skewed in (False, True)
    ]
    fixed = ratio([2048] * 6, hidden=4096, width=11008, vocab=151936, layers=12)
    assert min(found) < VARIED < max(found)
    assert abs(statistics.median(found) - VARIED) < 0.6  # a shorter replay than the one the figure is from
    assert fixed < 1.3


def test_expandable_segments_leave_almost_nothing() -> None:
    usual = estimate(job())
    grown = estimate(job(framework={"allocator": {"expandable_segments": True}}))
    assert grown.outside("allocator") < 2 * 1024**2 <= usual.outside("allocator")


def test_the_cache_ends_at_the_card() -> None:
    ledger = estimate(job(batch={"micro_batch": 8, "seq_len": 8192}, hardware={"gpu": {"name": "a small card", "memory_gib": 6}}))
    assert ledger.outside("allocator") == 0 or ledger.expected_totals()["device_used"].expected <= 6 * GIB


def test_several_ranks_hold_communication_buffers() -> None:
    one = {"gpus_per_node": 1}
    alone, many = estimate(job(hardware=one)), estimate(job(parallel={"strategy": "ddp", "shard": 8}))
    assert many.outside("context") > alone.outside("context")
