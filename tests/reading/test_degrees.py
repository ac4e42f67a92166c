"""Layouts as people write them."""

import pytest

from advisor.reading import degrees, read


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Parallelism: TP=2, PP=4, VP=5 (interleaved), CP=1, EP=1", {"tensor": 2, "pipeline": 4, "virtual_stages": 5, "context": 1, "expert": 1}),
        ("16x H100, TP2 / ETP1 / EP8 / CP1 / PP1", {"tensor": 2, "expert_tensor": 1, "expert": 8, "context": 1, "pipeline": 1}),
        ("we use tensor parallel size 4 and pipeline parallelism of 2", {"tensor": 4, "pipeline": 2}),
        ("Qwen3-14B, 8xH100, TP=4", {"tensor": 4}),
        ("see EP 3 of the series", {}),
        ("PP 4 pages, EP 3 album", {}),
        ("CP: 3 dollars", {}),
        ("TP: 4, PP: 2", {"tensor": 4, "pipeline": 2}),
        ("a PP2 printer", {}),
        ("TP=2.5", {}),
        ("HTTP=2 and STEP=4", {}),
    ],
    ids=["equals", "bare", "words", "one", "episode", "apart", "price", "colons", "product", "fraction", "inside"],
)
def test_degrees(text: str, found: dict[str, int]) -> None:
    assert {field.removeprefix("parallel."): value for field, value in degrees.layout(text)} == found


@pytest.mark.parametrize(
    ("text", "nodes", "each"),
    [
        ("GB200 NVL, 16 nodes x 4 GPUs = 64 GPUs", 16, 4),
        ("we train on 2 nodes with 8 H100 GPUs", 2, 8),
        ("16x H100 80GB (2 nodes)", 2, 8),
        ("8x H100 80GB, 2 nodes", 2, 8),
    ],
    ids=["product", "with", "all", "each"],
)
def test_nodes_and_their_cards(text: str, nodes: int, each: int) -> None:
    job = read([("question.txt", f"{text}\n\ntorch.OutOfMemoryError: CUDA out of memory.\n")]).job
    assert (job.hardware.nodes, job.hardware.gpus_per_node) == (nodes, each)


def test_the_batch_of_all_is_not_that_of_one() -> None:
    job = read([("question.txt", "sequence length 8192, global batch size 256, micro-batch size 1\ntorch.OutOfMemoryError: CUDA out of memory.\n")]).job
    assert job.batch.micro_batch == 1 and job.batch.seq_len == 8192
