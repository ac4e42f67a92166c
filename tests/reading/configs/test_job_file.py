"""A job file given to the readers comes back as it was written."""

from pathlib import Path

import pytest

from advisor.accuracy import load
from advisor.job import read_job
from advisor.reading import read

MEASURED = Path(__file__).resolve().parents[3] / "knowledge" / "measurements"
JOBS = [m.job for file in sorted(MEASURED.glob("*.yaml")) for m in list(load([file]))[:2] if m.job is not None]


@pytest.mark.parametrize("name", ["job.yaml", "pasted.txt"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.name))
def test_round_trip(job, name: str) -> None:
    found = read([(name, job.to_yaml())])
    assert found.job.but(name=None) == job.but(name=None)
    assert found.evidence.not_understood == ()


def test_json_too() -> None:
    job = read_job({"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 2, "lengths": {"p50": 100, "max": 900}}})
    import json

    assert read([("x.json", json.dumps(job.to_dict()))]).job == job


def test_what_is_wrong_is_named_and_the_rest_is_read() -> None:
    found = read([("job.yaml", "version: 1\nmodel: {name: meta-llama/Llama-3.1-8B}\nbatch: {micro_bach: 1, seq_len: -3, gradient_accumulation: 4}\n")])
    assert found.job.batch.gradient_accumulation == 4
    said = " ".join(item.why for item in found.evidence.not_understood)
    assert "did you mean batch.micro_batch" in said
    assert "greater than or equal to 1" in said
