"""A job file says each thing once, and each number as it looks."""

from __future__ import annotations

import json

import pytest

from advisor.job import JobError, read_job
from advisor.reading import read

HEAD = "version: 1\nmodel: {name: gpt2}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "batch: {seq_len: 512, seq_len: 1024}\n", "batch.seq_len is written twice (lines 3 and 3)"),
        (HEAD + "batch:\n  micro_batch: 2\n  seq_len: 512\n  micro_batch: 4\n", "batch.micro_batch is written twice (lines 4 and 6)"),
        (HEAD + "batch: {micro_batch: 1}\nbatch: {seq_len: 2}\n", "batch is written twice (lines 3 and 4)"),
        ('{"version": 1, "batch": {"seq_len": 5, "seq_len": 6}}', "seq_len is written twice in one object"),
        (HEAD + "batch: {seq_len: 0200}\n", "0200 has a leading zero, which YAML reads in base 8 (128)"),
        (HEAD + "batch: {seq_len: 2:10}\n", "2:10 is a number of base 60"),
        (HEAD + "batch: &a {seq_len: 10}\neval: *a\n", "aliases"),
        (HEAD + "batch: {lengths: {p50: 900, p99: 300}}\n", "batch.lengths.p50 900 is above p99 300"),
        (HEAD + "batch: {lengths: {p95: 900, max: 899}}\n", "batch.lengths.p95 900 is above max 899"),
    ],
)
def test_what_two_readers_would_understand_differently_is_refused(text: str, says: str) -> None:
    with pytest.raises(JobError) as refused:
        read_job(text)
    assert says in str(refused.value)


@pytest.mark.parametrize("length", ["512", "0", "5_120", "0x200"])
def test_plain_numbers_are_numbers(length: str) -> None:
    if length == "0":
        with pytest.raises(JobError, match="seq_len"):
            read_job(HEAD + "batch: {seq_len: 0}\n")
        return
    assert read_job(HEAD + f"batch: {{seq_len: {length}}}\n").batch.seq_len in (512, 5120)


def test_lengths_may_be_equal_and_may_be_partly_unknown() -> None:
    job = read_job(HEAD + "batch: {lengths: {p50: 100, p99: 100, max: 100}}\n")
    assert job.batch.lengths is not None
    assert job.batch.lengths.p95 is None


def test_a_job_file_among_other_texts_is_held_to_the_same() -> None:
    found = read([("job.yaml", HEAD + "batch: {micro_batch: 2, micro_batch: 4, seq_len: 0200}\nhardware: {gpus_per_node: 3}\n")])
    assert (found.job.batch.micro_batch, found.job.batch.seq_len, found.job.hardware.gpus_per_node) == (None, None, 3)
    why = " ".join(item.why for item in found.evidence.not_understood)
    assert "written twice" in why
    assert "base 8" in why
    assert len(found.evidence.not_understood) == 2


def test_a_job_that_was_written_is_read_again() -> None:
    job = read_job(HEAD + "name: '010'\nbatch: {seq_len: 64}\nframework: {versions: {torch: '2:10'}}\n")
    assert read_job(job.to_yaml()) == job
    assert read_job(json.dumps(job.to_dict())) == job
