"""What the command line refuses: a sentence that says what was read and what would do, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.cli import main

JOB = """
version: 1
model: {name: meta-llama/Llama-3.2-1B}
method: {kind: lora}
batch: {micro_batch: 1, seq_len: 1024}
hardware: {gpu: a100-80gb, gpus_per_node: 1}
"""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "JOB", "--before", "--tokens", "nan"], "a positive number of tokens"),
        (["plan", "JOB", "--before", "--tokens", "1e400"], "a positive number of tokens"),
        (["plan", "JOB", "--before", "--tokens", "-5"], "a positive number of tokens"),
        (["plan", "JOB", "--before", "--tokens", "1e9", "--hours", "nan"], "a positive number of hours"),
        (["plan", "JOB", "--before", "--tokens", "1e9", "--budget", "0"], "a positive number of units of money"),
        (["accuracy", "--only", "*no-such-case*"], "no case's id matches"),
        (["cards", "h10"], "h100"),
        (["cards", "a100-88gb"], "did you mean 'a100-80gb'?"),
        (["cards", "a100-88gb", "--json"], "did you mean 'a100-80gb'?"),
        (["cards", "zzz"], "`advisor cards` lists all"),
        (["models", "Qwen2.5-7BB"], "did you mean 'Qwen/Qwen2.5-7B'?"),
        (["check", "JOB", "--budget", "70"], "70GiB is probably meant"),
        (["estimate", "JOB", "--phase", "rollout"], "this job has no such phase; it has load, "),
        (["estimate", "JOB", "--gpu", "a100-88gb"], "did you mean 'a100-80gb'?"),
        (["plan", "JOB", "--set", "hardware.gpu=quux"], "is no card of the catalogue"),
    ],
)
def test_a_sentence_and_two(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    code = main([str(file) if a == "JOB" else a for a in arguments])
    told = capsys.readouterr()
    if arguments == ["cards", "h10"]:  # a part of a name is found
        assert (code, says in told.out) == (0, True)
    else:
        assert (code, told.out) == (2, "")
        assert says in told.err
        assert len(told.err.strip().splitlines()) == 1


def test_what_is_found_is_still_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["cards", "h100"]) == main(["models", "llama"]) == main(["check", str(file), "--budget", "70GiB"]) == 0
    assert main(["estimate", str(file), "--phase", "backward", "--gpu", "name:mine,memory_gib:48"]) == 0
    assert "h100-80gb" in capsys.readouterr().out


def test_the_pattern_that_the_help_shows_finds_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--only", "fms-*-lora"]) == 0
    assert "Worst first" in capsys.readouterr().out
