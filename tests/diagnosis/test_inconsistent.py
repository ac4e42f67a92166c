"""Settings that cannot hold together are told once, and only where one run would have both."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.render import words

ARGUMENTS = "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir='x', fp16=True, bf16=True, per_device_train_batch_size=2)\n"
TWO_RUNS = "torchrun a.py --bf16 True --output_dir a\ntorchrun b.py --fp16 True --output_dir b\n"
SECTION = "trainer:\n  fp16: true\n  bf16: true\n  per_device_train_batch_size: 2\n"
TWO_SECTIONS = "first:\n  fp16: true\n  per_device_train_batch_size: 2\nsecond:\n  bf16: true\n"


@pytest.mark.parametrize(
    ("name", "text", "times"),
    [("train.py", ARGUMENTS, 1), ("run.sh", TWO_RUNS, 0), ("config.yaml", SECTION, 1), ("config.yaml", TWO_SECTIONS, 0)],
)
def test_both_halves_are_told_once(name: str, text: str, times: int) -> None:
    said = [sentence for sentence in words.disagreements(diagnose([(name, text)])) if "fp16" in sentence and "bf16" in sentence]
    assert len(said) == times, said
