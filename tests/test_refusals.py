"""What the command line refuses: a sentence that says what was read and what would do, and exit code 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.cli import main
from advisor.reading.sources import texts

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
        (["plan", "JOB", "--tokens", "-5"], "a positive number of tokens"),
        (["plan", "JOB", "--tokens", "nan"], "a positive number of tokens"),
        (["plan", "JOB", "--tokens", "5e9"], "--tokens belongs to --before"),
        (["plan", "JOB", "--budget", "5"], "--budget belongs to --before"),
        (["plan", "JOB", "--limits", "--price", "h100-80gb=2"], "--price belongs to --before"),
        (["plan", "JOB", "--limits", "--before"], "two questions"),
        (["plan", "JOB", "--limits", "--strict"], "--strict judges the plan"),
        (["plan", "JOB", "--before", "--budget", "5"], "--budget needs the price"),
        (["diagnose", "JOB", "--json", "--markdown"], "--json and --markdown are 2 forms of one report"),
        (["diagnose", "JOB", "--link", "--html"], "--html and --link are 2 forms of one report"),
        (["accuracy", "--only", "*no-such-case*"], "no case's id matches"),
        (["cards", "h10"], "h100"),
        (["cards", "a100-88gb"], "did you mean 'a100-80gb'?"),
        (["cards", "a100-88gb", "--json"], "did you mean 'a100-80gb'?"),
        (["cards", "zzz"], "`advisor cards` lists all"),
        (["models", "Qwen2.5-7BB"], "did you mean 'Qwen/Qwen2.5-7B'?"),
        (["check", "JOB", "--budget", "70"], "70GiB is probably meant"),
        (["estimate", "JOB", "--phase", "rollout"], "this job has no such phase; it has load, "),
        (["estimate", "JOB", "--gpu", "a100-88gb"], "did you mean 'a100-80gb'?"),
        (["estimate", "JOB", "--gpu", "h1000"], "'h1000' is no card of the catalogue; did you mean 'H100'"),
        (["estimate", "JOB", "--strategy", "fsdp"], "FSDP2) is fsdp2"),
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
        assert code == 2
        assert (json.loads(told.out)["error"] in told.err) if "--json" in arguments else told.out == ""
        assert says in told.err
        assert len(told.err.strip().splitlines()) == 1


def test_an_unknown_model_brings_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["estimate", str(file), "--model", "llama3"]) == 3
    assert "did you mean meta-llama/Meta-Llama-3-8B?" in " ".join(capsys.readouterr().out.split())
    assert main(["models", "llama3"]) == 0
    assert "meta-llama/Meta-Llama-3-8B" in capsys.readouterr().out
    assert main(["models", "nosuchmodel"]) == 2
    assert "did you mean" not in capsys.readouterr().err  # nothing is near


def test_what_is_found_is_still_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["cards", "h100"]) == main(["models", "llama"]) == main(["check", str(file), "--budget", "70GiB"]) == 0
    assert main(["estimate", str(file), "--phase", "backward", "--gpu", "name:mine,memory_gib:48"]) == 0
    assert "h100-80gb" in capsys.readouterr().out


def test_the_pattern_that_the_help_shows_finds_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--only", "fms-*-lora"]) == 0
    assert "Worst first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnose", "no-such-file.txt"], "no-such-file.txt"),
        (["estimate", "no-such-file.yaml"], "no-such-file.yaml"),
        (["estimate", "JOB", "--nonsense"], "--nonsense"),
        (["estimate", "JOB", "--set", "batch.micro_bach=2"], "batch.micro_batch"),
        (["plan", "JOB", "--before", "--tokens", "nan"], "a positive number of tokens"),
        (["probe", "JOB", "--timeout", "-1"], "above 0"),
        (["validate", "JOB", "--cap", "huge"], "no size"),
        (["compare", "JOB", "no-such-file.json"], "no-such-file.json"),
        (["lengths", "no-such-file.jsonl"], "no such file"),
        (["accuracy", "--only", "*no-such-case*"], "no case"),
        (["events", "no-such-file.jsonl"], "no-such-file"),
        (["cards", "zzz"], "lists all"),
        (["models", "zzzz"], "lists all"),
        (["collect", "--nonsense"], "--nonsense"),
    ],
)
def test_what_reads_json_is_told_in_json(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    command = [str(file) if a == "JOB" else a for a in arguments]
    assert main(command) == 2
    silent = capsys.readouterr()
    assert main([*command, "--json"]) == 2
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert (answer["version"], answer["verdict"], answer["exit_code"]) == (1, "unreadable", 2)
    assert says in answer["error"]
    assert (silent.out, silent.err) == ("", told.err)


def test_the_json_of_a_watched_command_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no-such-command-here", "--json"]) != 0
    assert capsys.readouterr().out == ""


def test_a_job_that_can_not_be_probed_says_so_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor import simulation

    def refuses(*_: object, **__: object) -> None:
        raise simulation.CannotProbe("no modelling code")

    monkeypatch.setattr(simulation, "probe", refuses)
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert main(["probe", str(file), "--json"]) == 3
    assert json.loads(capsys.readouterr().out) == {"version": 1, "verdict": "incomplete", "error": "no modelling code", "exit_code": 3}


def test_which_limit_an_offer_is_beyond(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    command = ["plan", str(file), "--before", "--price", "a100-80gb=2", "--tokens", "1e10", "--hours", "0.5", "--budget", "1"]
    assert main(command) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"1 x a100-80gb: fits[^x]* to ([\d.,]+)\) h; [^x]* to ([\d.,]+)\); [^x]*beyond --hours 0.5: up to \1 h and beyond --budget 1: up to \2 ", said
    )
    assert main(["plan", str(file), "--before", "--hours", "5"]) == 1
    assert "not known to be within --hours 5" in " ".join(capsys.readouterr().out.split())


def test_a_file_of_another_kind_is_refused_once_and_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name once, no size that is only what was read, and no reading to the end of what is no log of events."""
    file = tmp_path / "big.log"
    file.write_bytes(b"step 12 loss 0.3 of a long log\n" * 1_500_000)
    assert main(["estimate", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("big.log is larger than the 1,000,000 bytes") == 1 and "big.log: " not in said and "1,000,001" not in said
    began = time.process_time()
    assert main(["events", str(file)]) == 2
    assert time.process_time() - began < 0.5, "45 MB were read"
    assert "holds no events" in capsys.readouterr().err
    began = time.process_time()
    assert main(["lengths", str(file)]) == 2
    assert time.process_time() - began < 0.5 and "is a log by its name" in capsys.readouterr().err
    assert main(["events", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    tabbed = tmp_path / "tab.yaml"
    tabbed.write_text("model:\n\tname: x\n")
    assert main(["estimate", str(tabbed)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"advisor: {tabbed} is neither YAML nor JSON")
    tabbed.write_text("modle: {}\n")
    assert main(["estimate", str(tabbed)]) == 2
    assert "did you mean 'model'? For logs" in capsys.readouterr().err


def test_a_baseline_that_is_not_there_is_not_called_unwritable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "approve", str(tmp_path / "none.yaml")]) == 2
    assert "there is no such baseline" in capsys.readouterr().err


def test_a_recommendation_stands_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("version: 1\nmodel: {name: meta-llama/Llama-3.1-8B}\nmethod: {kind: full}\nbatch: {micro_batch: 8, seq_len: 4096}\n")
    command = ["plan", str(file), "--before", "--tokens", "1e8"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["recommended"]
    assert best == found["offers"][0] and best["verdict"] == "fits"
    assert any(o["micro_batch"] < 8 and "in place of 8" in o["batch"] for o in found["offers"])
    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Take {best['cards']} x {best['card']}: the fewest card-hours")
    assert len(said.splitlines()) < 80
    assert "on each card in place of 8" in " ".join(said.split())


def test_a_budget_that_is_exceeded_says_by_which_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from advisor.arithmetic import estimate
    from advisor.job import read_job
    from advisor.units import GIB, show
    from advisor.verdict import needed

    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    need = needed(estimate(read_job(JOB)))
    between = round((need.expected + need.high) / 2 / GIB, 2)
    assert main(["check", str(file), "--budget", f"{between}GiB"]) == 0
    assert main(["check", str(file), "--budget", f"{between}GiB", "--strict"]) == 1
    assert f"the high end of the range, which --strict judges by, is {show(round(need.high - between * GIB))} over the budget" in capsys.readouterr().out
    assert main(["check", str(file), "--budget", "1GiB"]) == 1
    assert f"what is expected is {show(need.expected - GIB)} over the budget" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    ["diagnose NAME", "compare NAME NAME", "lengths NAME", "estimate NAME", "baseline save NAME", "baseline approve NAME", "events NAME", "accuracy NAME"],
)
def test_neither_a_name_that_is_empty_nor_a_pipe_is_opened(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)  # nobody writes to it: opening it would never return
    for name, says in (("", "a file's name is empty"), (str(pipe), "neither a file nor a folder"), ("x" * 5000, "cannot be read: File name too long")):
        assert main([name if word == "NAME" else word for word in command.split()]) == 2
        assert says in capsys.readouterr().err


def test_a_pipe_is_not_opened_by_the_library_either(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (found,) = texts([("pipe", tmp_path / "pipe")])
    assert found.problem == "not a regular file"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("cards > /dev/full", "standard output cannot be written: No space left on device"),
        ("cards --json > /dev/full", "standard output cannot be written: No space left on device"),
        ("--help >&-", "standard output is closed"),
        ("cards >&-", "standard output is closed"),
        ("diagnose - <&-", "standard input, which is closed"),
        ("diagnose <(echo CUDA out of memory) >&-", "standard output is closed"),
    ],
)
def test_output_that_can_not_be_written_is_a_sentence(shell: str, says: str) -> None:
    done = subprocess.run(["bash", "-c", f'"$0" -m advisor {shell}', sys.executable], capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert says in done.stderr


def test_what_a_shell_hands_over_is_read(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m advisor diagnose <(echo "torch.OutOfMemoryError: CUDA out of memory.")', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "emory" in done.stdout and done.returncode in (1, 3)
