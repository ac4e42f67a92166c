"""Where the job is not known: what a finished run measured itself, and what is needed at the least."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose

ENDED = (
    "GPU = NVIDIA A100-PCIE-40GB. Max memory = 39.496 GB.\n11.398 GB of memory reserved.\n675.8237 seconds used for training.\n"
    "Peak reserved memory = {} GB.\nPeak reserved memory % of max memory = 72.668 %.\n"
)


@pytest.mark.parametrize(("peak", "verdict"), [("28.701", "fits"), ("37.9", "tight")])
def test_a_run_that_ended_is_judged_by_its_own_figures(peak: str, verdict: str) -> None:
    report = diagnose([("log.txt", ENDED.format(peak))])
    assert report.verdict == verdict and "ended by itself" in report.sentence


def test_a_run_that_did_not_end_is_not() -> None:
    text = ENDED.format("28.701").replace("675.8237 seconds used for training.\n", "")
    assert diagnose([("log.txt", text)]).verdict == "incomplete"


@pytest.mark.parametrize(
    "text", ["How much VRAM do I need to fine-tune a 3B model?\n", "If I want to finetune llama 3B_v2, is 24 GB enough\n", "ein 3 B Modell trainieren\n"]
)
def test_a_size_alone_is_answered_with_a_bound(text: str) -> None:
    report = diagnose([("question.txt", text)])
    assert report.verdict == "incomplete" and report.sentence.startswith("At least ")
    assert "adapters need far less" in report.sentence and report.next_question is not None


def test_without_a_length_the_state_is_still_told_and_compared_with_the_card() -> None:
    script = (
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-7B', torch_dtype=torch.bfloat16)\n"
        "args = TrainingArguments(output_dir='o', bf16=True, per_device_train_batch_size=4)\n# one RTX 4090 24GB\n"
    )
    report = diagnose([("train.py", script)])
    assert report.verdict == "incomplete" and "batch.seq_len" in report.sentence
    assert "At least " in report.sentence and "more than the" in report.sentence
