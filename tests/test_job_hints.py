"""A value that a field does not take brings the one that was meant, where that can be told; nothing is proposed where it cannot."""

import pytest

from advisor.job import JobError, read_job
from advisor.stating import StatingError, validated


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("parallel.strategy", "fsdp", "fsdp2"),
        ("parallel.strategy", "zero-3", "did you mean 'zero3'?"),
        ("parallel.strategy", "deepspeed", "zero1, zero2 or zero3"),
        ("activations.checkpointing", "true", "did you mean 'full'?"),
        ("activations.checkpointing", "false", "did you mean 'none'?"),
        ("method.kind", "qlora", "kind: lora with base: nf4"),
        ("optimizer.name", "8bit adam", "did you mean 'adamw-8bit'?"),
        ("optimizer.name", "adafactr", "did you mean 'adafactor'?"),
        ("precision.compute", "bfloat16", "did you mean 'bf16'?"),
        ("activations.attention", "flash_attention_2", "did you mean 'flash-2'?"),
    ],
)
def test_what_was_meant_is_said(field: str, value: str, says: str) -> None:
    with pytest.raises(StatingError) as error:
        validated(field, value)
    assert says in str(error.value)


@pytest.mark.parametrize(("field", "value"), [("method.kind", "xyzzy"), ("objective", "7"), ("batch.micro_batch", "full"), ("optimizer.name", "")])
def test_nothing_is_proposed_where_nothing_is_near(field: str, value: str) -> None:
    with pytest.raises(StatingError) as error:
        validated(field, value)
    assert "did you mean" not in str(error.value)


def test_a_job_file_says_it_too() -> None:
    with pytest.raises(JobError, match=r"method.kind: .*QLoRA is kind: lora with base: nf4"):
        read_job("version: 1\nmethod: {kind: qlora}\n")
    with pytest.raises(JobError, match=r"did you mean 'full'"):
        read_job("version: 1\nactivations: {checkpointing: true}\n")
    assert read_job("version: 1\nmethod: {kind: lora, base: nf4}\n").method.base == "nf4"  # what the sentence proposes is taken
