"""The allocator's cache, the context, and what a card's edge does."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.arithmetic.outside import VARIED
from advisor.units import GIB
from tests.arithmetic.jobs import job
from tests.arithmetic.replay import drawn, ratio

TODAY = {"versions": {"torch": "2.13.0", "transformers": "5.24.0"}}
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


def test_expandable_segments_leave_holes_too_but_varied_lengths_do_not_strand() -> None:
    grows = {"allocator": {"expandable_segments": True}}
    usual, grown = estimate(job()), estimate(job(framework=grows))
    assert 0 < grown.outside("allocator") <= usual.outside("allocator")
    varied = {"packed": False}
    assert estimate(job(batch=varied, framework=grows)).outside("allocator") < estimate(job(batch=varied)).outside("allocator")


@pytest.mark.parametrize(
    ("sections", "reserved_gib"),
    [
        ({"batch": {"micro_batch": 2, "seq_len": 2048}, "activations": {"checkpointing": "full", "reentrant": False}}, 18.38),
        ({"batch": {"micro_batch": 2, "seq_len": 2048}, "activations": {"checkpointing": "none"}}, 19.88),
    ],
    ids=["checkpointed", "all activations kept"],
)
def test_reserved_as_the_allocator_replays_a_real_step(sections: dict[str, Any], reserved_gib: float) -> None:
    """Figures of ``advisor probe`` (torch 2.13, transformers 5.24, meta device): Llama-3.2-1B, bf16 AdamW foreach, sdpa, fp32 loss, its own replay."""
    probed = job(**sections, framework=TODAY).but(model={"name": "meta-llama/Llama-3.2-1B", "config": None})
    found = estimate(probed.but(activations={"attention": "sdpa"})).expected_totals()["max_reserved"].expected
    assert abs(found / GIB / reserved_gib - 1) < 0.06


def test_the_cache_ends_at_the_card() -> None:
    ledger = estimate(job(batch={"micro_batch": 8, "seq_len": 8192}, hardware={"gpu": {"name": "a small card", "memory_gib": 6}}))
    assert ledger.outside("allocator") == 0 or ledger.expected_totals()["device_used"].expected <= 6 * GIB


def test_several_ranks_hold_communication_buffers() -> None:
    one = {"gpus_per_node": 1}
    alone, many = estimate(job(hardware=one)), estimate(job(parallel={"strategy": "ddp", "shard": 8}))
    assert many.outside("context") > alone.outside("context")
