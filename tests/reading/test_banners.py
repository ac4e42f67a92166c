"""A loop's settings are read by the heading above them."""

from __future__ import annotations

import pytest

from advisor.reading import read

OPENS = "***** Running {} *****"


@pytest.mark.parametrize("before", ["", "[INFO|trainer.py:4307] 2026-05-01 10:00:00,123 >> ", "05/01/2026 10:00:00 - INFO - __main__ - "])
@pytest.mark.parametrize("heading", ["Evaluation", "Prediction"])
def test_the_batch_of_an_evaluation_is_not_that_of_training(heading: str, before: str) -> None:
    lines = [OPENS.format(heading), "  Num examples = 512", "  Batch size = 64"]
    job = read([("log.txt", "\n".join(f"{before}{line}" for line in lines))]).job
    assert job.get("eval.micro_batch") == 64
    assert job.batch.micro_batch is None


def test_both_banners_beside_each_other() -> None:
    lines = [
        OPENS.format("training"), "  Num examples = 9,000", "  Num Epochs = 3", "  Instantaneous batch size per device = 3",
        "  Total train batch size (w. parallel, distributed & accumulation) = 96", "  Gradient Accumulation steps = 4", "  Total optimization steps = 281",
        "{'loss': 1.1, 'epoch': 0.3}", " 30%|###       | 90/281", OPENS.format("Evaluation"), " 31%|###       | 91/281",
        "  Num examples = 512", "  Batch size = 64",
    ]  # fmt: skip
    job = read([("log.txt", "\n".join(lines))]).job
    assert (job.batch.micro_batch, job.batch.gradient_accumulation, job.get("eval.micro_batch")) == (3, 4, 64)


def test_a_script_of_ones_own_names_its_training_batch() -> None:
    job = read([("log.txt", "\n".join([OPENS.format("training"), "  Num examples = 9000", "  Batch size = 24", "  Num steps = 100"]))]).job
    assert (job.get("batch.micro_batch"), job.get("eval.micro_batch")) == (24, None)
