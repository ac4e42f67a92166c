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


@pytest.mark.parametrize(("bf16", "fp16", "told"), [("auto", "true", True), ("true", "true", True), ("auto", "false", False), ("auto", "auto", False)])
def test_bf16_auto_beside_fp16_is_told(bf16: str, fp16: str, told: bool) -> None:
    config = f"base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 2\nbf16: {bf16}\nfp16: {fp16}\nflash_attention: true\n"
    conflicts = diagnose([("axolotl.yaml", config)]).conflicts
    assert any(c.field == "precision.compute" for c in conflicts) is told
