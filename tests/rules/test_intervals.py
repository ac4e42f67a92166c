"""The failing step against the steps at which it evaluates or saves; lengths in prose; expandable segments that are on or refused; notes."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.rules.samples import oom

FULL = oom("512.00 MiB", allocated=76.5, unallocated=1.2)
RUN = "python train.py --model_name_or_path Qwen/Qwen2.5-7B --eval_steps {} --save_steps {} --per_device_train_batch_size 2\n"


def _shares(command: str, step: int) -> dict[str, float]:
    bar = f" 25%|##5  | {step}/20000 [10:00<30:00, 1.2s/it]\n"
    found = {f.cause: f.confidence for f in diagnose([("run.sh", command), ("log.txt", bar + FULL)]).findings}
    return {cause: found.get(cause, 0.0) for cause in ("eval-batch", "eval-accumulation", "save-gather", "batch-outlier")}


def test_a_failure_at_the_step_of_an_evaluation_or_a_save() -> None:
    evaluating, saving, between = _shares(RUN.format(500, 7000), 1500), _shares(RUN.format(7000, 500), 1500), _shares(RUN.format(500, 7000), 1507)
    assert evaluating["eval-batch"] + evaluating["eval-accumulation"] > 3 * (between["eval-batch"] + between["eval-accumulation"])
    assert saving["save-gather"] > 3 * between["save-gather"]
    assert between["batch-outlier"] > evaluating["batch-outlier"]


def test_where_both_are_due_it_says_less_of_each() -> None:
    both, alone = _shares(RUN.format(500, 500), 1500), _shares(RUN.format(500, 7000), 1500)
    assert 0 < both["eval-batch"] < alone["eval-batch"]


@pytest.mark.parametrize(
    "text",
    ["our samples have median 310, max 3980 tokens", "token lengths: p50=310 p95=1,200 max=3,980", "the median length is 310, the longest is 3980 tokens"],
)
def test_lengths_in_prose(text: str) -> None:
    lengths = read([("q.txt", text + "\n")]).job.batch.lengths
    assert lengths is not None and (lengths.p50, lengths.max) == (310, 3980)


@pytest.mark.parametrize("text", ["max 3980 tokens", "median loss 310, max grad norm 3", "we use max_seq_length 512"])
def test_one_figure_or_figures_of_something_else_are_no_lengths(text: str) -> None:
    assert read([("q.txt", text + "\n")]).job.batch.lengths is None


@pytest.mark.parametrize(
    "line",
    [
        "UserWarning: expandable_segments not supported on this platform (Triggered internally at ../c10/cuda/CUDAAllocatorConfig.h:28.)\n",
        "AssertionError: Expandable segments are not compatible with memory pool.\n",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n",
    ],
)
def test_expandable_segments_are_not_offered_where_they_are_on_or_refused(line: str) -> None:
    text = oom("3.40 GiB", allocated=62.0, unallocated=14.0, free=1.0)
    assert "expandable-segments" in [s.technique for s in diagnose([("e", text)]).plan.steps]
    report = diagnose([("e", line + text)])
    assert "expandable-segments" not in [s.technique for s in report.plan.steps]
    for finding in report.findings:
        assert finding.cause != "fragmentation" or "expandable-segments" not in finding.remedies


def test_what_cannot_hold_together_and_what_is_not_known_is_said() -> None:
    script = "args = TrainingArguments('o', fp16=True, bf16=True, per_device_train_batch_size=-4)\nmodel = AutoModelForCausalLM.from_pretrained('lab/Net-9B')\n"
    report = diagnose([("args.py", script)])
    notes = " ".join(report.notes)
    assert [c.field for c in report.conflicts] == ["precision.compute"]
    assert "lab/Net-9B is not known" in notes and "-4" in notes
