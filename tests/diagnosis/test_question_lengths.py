"""A sequence length is asked for within the model's positions."""

from __future__ import annotations

from advisor.diagnosis import question
from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.run import resolve


def asked(name: str) -> tuple[object, ...]:
    run = resolve(read_job({"version": 1, "model": {"name": name}, "batch": {"micro_batch": 8}, "hardware": {"gpu": "a100-80gb"}}))
    found = question.next_question(run, Evidence())
    assert found is not None and found.field == "batch.seq_len"
    return found.options


def test_no_length_beyond_the_last_position() -> None:
    assert asked("gpt2-medium") == (256, 1024)
    assert asked("meta-llama/Llama-3.1-8B") == (1024, 4096, 16384)
