"""The walked boundary is the one that estimating every cell would give; cards come out by size."""

import time

from advisor.arithmetic import estimate
from advisor.frontier import MICRO_BATCHES, SEQUENCES, batch_map, largest_batches, on_cards
from advisor.job import read_job
from advisor.run import Run, resolve
from advisor.verdict import judge


def run(**more: object) -> Run:
    return resolve(
        read_job(
            {
                "version": 1,
                "model": {"name": "meta-llama/Llama-3.1-8B"},
                "method": {"kind": "full"},
                "optimizer": {"name": "adamw"},
                "precision": {"weights": "bf16", "compute": "bf16"},
                "activations": {"checkpointing": "full", "attention": "flash-2"},
                "batch": {"micro_batch": 1, "seq_len": 1024, "gradient_accumulation": 1},
                "parallel": {"strategy": "fsdp2", "shard": 8},
                "hardware": {"gpu": "a100-80gb"},
                **more,
            }
        )
    )


def test_the_walk_agrees_with_every_cell() -> None:
    start = run()
    micro, seqs = MICRO_BATCHES[::4], SEQUENCES[::4]
    walked = batch_map(start, micro, seqs)
    for m in micro:
        for s in seqs:
            changed = start.but(batch={"micro_batch": m, "seq_len": s})
            assert walked[m, s] == judge(changed, estimate(changed))[0], (m, s)


def test_the_map_is_whole_and_quick() -> None:
    start = run()
    batch_map(start)
    best = min(_seconds(start) for _ in range(3))
    assert best < 0.45, f"{best:.3f} s"  # 0.15 s on an idle core; room for a loaded machine


def _seconds(start: Run) -> float:
    begin = time.process_time()
    found = batch_map(start)
    assert len(found) == len(MICRO_BATCHES) * len(SEQUENCES)
    return time.process_time() - begin


def test_the_largest_batch_falls_with_the_sequence() -> None:
    best = [m or 0 for _, m in largest_batches(batch_map(run()))]
    assert best == sorted(best, reverse=True) and best[0] > 0


def test_no_map_without_a_card() -> None:
    assert batch_map(run(hardware={})) == {}


def test_cards_come_by_size_with_a_verdict_each() -> None:
    found = on_cards(run())
    assert [c.usable_bytes for c in found] == sorted(c.usable_bytes for c in found)
    assert {c.verdict for c in found} <= {"fits", "tight", "ooms"}
    assert all(c.need_bytes <= c.usable_bytes for c in found if c.verdict != "ooms")
