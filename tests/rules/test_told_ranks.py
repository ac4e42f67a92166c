"""One rank alone among several, as people say it."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.rules import told_ranks


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ("My run on 4 cards hits OOM on rank 0 only, others have 8GB less.", 0),
        ("rank 5 OOM at iteration 812 in grouped gemm, other ranks fine", 5),
        ("It runs out of memory only on GPU 0.", 0),
        ("GPU 0 uses 6 GB more than the others.", 0),
        ("OOM on all ranks, others in the team see it too", None),
        ("Does it fail only on rank 0?", None),
        ("GPU 0 has a total capacity of 79.15 GiB of which 1.28 GiB is free", None),
    ],
)
def test_one_rank_alone(said: str, rank: int | None) -> None:
    found = told_ranks.alone(read([("said.txt", said)]).evidence)
    assert (None if found is None else found[0]) == rank


def test_foreign_memory_on_the_first_card_alone_is_the_other_ranks() -> None:
    said = "DDP on 4x RTX 3090 hits OOM on rank 0 only, others have 8GB less. I torch.load(path) without map_location.\n"
    error = (
        "RuntimeError: CUDA out of memory. Tried to allocate 500.00 MiB (GPU 0; 23.70 GiB total capacity; 14.10 GiB already allocated; "
        "310.50 MiB free; 14.60 GiB reserved in total by PyTorch)\n"
    )
    assert diagnose([("said.txt", said + error)]).findings[0].cause == "ranks-on-one-gpu"
    assert diagnose([("error.txt", error)]).findings[0].cause == "other-process"


def test_one_rank_with_experts_is_the_routers() -> None:
    said = "Mixture of experts with Megatron-LM: rank 5 OOM at iteration 812 in grouped gemm, other ranks fine, dropless."
    assert diagnose([("said.txt", said)]).findings[0].cause == "expert-imbalance"


def test_quantised_and_as_large_as_before() -> None:
    said = "bitsandbytes 4bit but memory same as bf16, nvidia-smi 15.9GB after load for a 7B. It runs out of GPU memory when training starts."
    assert diagnose([("said.txt", said)]).findings[0].cause == "quantization-not-applied"
