"""Which micro batches are alive when, under torch's schedules; and what its pipelines hold, against figures of ``advisor probe``."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import estimate
from advisor.arithmetic.stages import dealt
from advisor.arithmetic.torch_schedule import passes
from advisor.ledger import Ledger
from tests.arithmetic.jobs import job


@pytest.mark.parametrize(("ranks", "rank", "chunks", "micro", "most"), [(4, 0, 1, 6, 4), (4, 3, 1, 6, 1), (4, 0, 1, 2, 2), (2, 0, 2, 4, 5), (4, 3, 2, 8, 5)])
def test_so_many_passes_are_in_flight(ranks: int, rank: int, chunks: int, micro: int, most: int) -> None:
    """One chunk: ranks - rank. Interleaved: what runs ahead, (chunks - 1) x round + 2 (ranks - 1 - rank), and one."""
    found = passes(ranks, rank, chunks, micro)
    assert max(sum(p.alive(c) for c in range(chunks)) for p in found) == most
    assert len(found) == 2 * micro * chunks
    assert all(b <= f for p in found for f, b in zip(p.forwards, p.backwards, strict=True))


@pytest.mark.parametrize(("framework", "layers"), [("custom", (3, 3, 2, 2)), ("torchtitan", (2, 3, 3, 2))])
def test_torchtitan_takes_embedding_and_head_for_a_layer_each(framework: str, layers: tuple[int, ...]) -> None:
    made = job({"num_hidden_layers": 10}, framework={"name": framework}, parallel={"pipeline": 4})
    assert dealt(made, 10) == layers


SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_key_value_heads": 8, "vocab_size": 16000}
SHARDED: dict[str, Any] = {
    "precision": {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32", "gradients": "fp32"}, "optimizer": {"states": "fp32"},
    "activations": {"kernels": ["rmsnorm"]},
}  # fmt: skip
TITAN = {**SHARDED, "framework": {"name": "torchtitan"}, "model": {"source": "torchtitan"}}
FOUR, TWO = {"pipeline": 4, "microbatches": 6}, {"pipeline": 2, "microbatches": 4}
INTERLEAVED, DIVIDED = {**TWO, "virtual_stages": 2}, {**TWO, "strategy": "fsdp2", "shard": 2}


def _job(rank: int, parallel: dict[str, Any], sections: dict[str, Any]) -> Any:
    activations = {"checkpointing": "none", "attention": "sdpa", **sections.get("activations", {})}
    sections = dict(sections)
    made = job(
        {**SHAPE, **sections.pop("config", {})}, **{
            "optimizer": {"states": "bf16"}, "batch": {"micro_batch": 2, "seq_len": 1024}, **sections, "activations": activations,
            "parallel": {**parallel, "pipeline_rank": rank}, "framework": {"name": "custom", **sections.get("framework", {})},
            "hardware": {"gpu": "h200", "gpus_per_node": parallel["pipeline"] * parallel.get("shard", 1)},
        },
    )  # fmt: skip
    return made.but(framework={"versions": {"torch": "2.13.0", "transformers": "5.24.0"}})


CASES: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
    ("first of four", 0, FOUR, {}),
    ("second of four", 1, FOUR, {}),
    ("last of four keeps and joins its logits", 3, FOUR, {}),
    ("checkpointed: the first layer's input is the buffer", 1, FOUR, {"activations": {"checkpointing": "full", "reentrant": False}}),
    ("interleaved, first", 0, INTERLEAVED, {}),
    ("interleaved, last", 1, INTERLEAVED, {}),
    ("as many micro batches as run ahead: no gradients yet at the peak", 0, {**FOUR, "microbatches": 4}, {}),
    ("interleaved, all forward before any backward", 0, {**FOUR, "virtual_stages": 2}, {}),
    ("many micro batches", 1, {"pipeline": 2, "microbatches": 12}, {}),
    ("FSDP2 within, last", 1, DIVIDED, SHARDED),
    ("torchtitan, first", 0, DIVIDED, TITAN),
    ("torchtitan, last", 1, DIVIDED, TITAN),
    ("torchtitan repeats keys and values of grouped heads", 0, DIVIDED, {**TITAN, "config": {"num_key_value_heads": 4}}),
]


def _names(ledger: Ledger) -> set[str]:
    return {h.name for h in ledger.holdings}


def test_the_last_stage_keeps_logits_but_for_torchtitan_s() -> None:
    kept = "the last stage's outputs, joined"
    assert kept in _names(estimate(_job(1, TWO, {})))
    assert kept not in _names(estimate(_job(0, TWO, {}))) | _names(estimate(_job(1, DIVIDED, TITAN)))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "rank", "parallel", "sections"), CASES, ids=[case[0] for case in CASES])
def test_the_peak_is_the_probe_s(name: str, rank: int, parallel: dict[str, Any], sections: dict[str, Any]) -> None:
    from advisor.run import resolve
    from advisor.simulation.step import record

    run = resolve(_job(rank, parallel, sections))
    recorder = record(run, rank=rank * parallel.get("shard", 1))
    most = alive = 0
    for event in recorder.events:
        alive += -recorder.storages[event.id].bytes if event.free else recorder.storages[event.id].bytes
        most = max(most, alive)
    assert estimate(run).peak().bytes == pytest.approx(most, rel=0.02), name
