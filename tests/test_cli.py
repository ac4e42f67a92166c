"""The command line as people meet it: verdicts as exit codes, the contract's JSON, and a sentence instead of a traceback."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor import cli
from advisor.units import GIB

JOB = """
version: 1
model: {name: meta-llama/Llama-3.1-8B}
method: {kind: full}
objective: sft
precision: {weights: bf16, compute: bf16}
optimizer: {name: adamw}
batch: {micro_batch: 1, seq_len: 2048, gradient_accumulation: 1}
activations: {checkpointing: full, attention: flash-2}
parallel: {strategy: %s, shard: %d}
hardware: {gpu: %s}
"""
ERROR = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 3, in <module>\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.79 GiB. GPU 0 has a total capacity of 23.60 GiB of which 7.15 GiB is free. "
    "Including non-PyTorch memory, this process has 16.45 GiB memory in use. Of the allocated memory 15.83 GiB is allocated by PyTorch, "
    "and 218.51 MiB is reserved by PyTorch but unallocated.\n"
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB % ("fsdp2", 8, "a100-80gb"))
    return file


@pytest.fixture
def error(tmp_path: Path) -> Path:
    file = tmp_path / "error.txt"
    file.write_text(ERROR)
    return file


def whole(*arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    """The command as its own process."""
    return subprocess.run(
        [sys.executable, "-m", "advisor.cli", *arguments], input=stdin, capture_output=True, timeout=timeout, env={**os.environ, **(env or {})}
    )


def test_version_help_and_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"advisor \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in cli.COMMANDS)
    assert cli.main([]) == 2


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    assert f"advisor {name}" in capsys.readouterr().out


def test_a_mistyped_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnoze"]) == 2
    assert "'diagnose'" in capsys.readouterr().err


def test_estimate_prints_the_contracts_ledger(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", str(job), "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert {
        "version",
        "kind",
        "job",
        "rank",
        "totals",
        "capacity",
        "verdict",
        "deviations",
        "peak",
        "phases",
        "step_seconds",
        "facts",
        "software",
        "notes",
    } <= set(ledger)
    assert ledger["version"] == 1 and ledger["kind"] == "estimated" and ledger["verdict"] == "fits"
    assert set(ledger["totals"]) == {"max_allocated", "max_reserved", "device_used", "host"}
    inside = [h for h in ledger["peak"]["holdings"] if h["device"] == "gpu" and h["part"] not in ("context", "allocator")]
    assert sum(h["bytes"] for h in inside) == ledger["totals"]["max_allocated"]["expected"]
    assert ledger["phases"][ledger["peak"]["phase"]] == ledger["totals"]["max_allocated"]["expected"]
    assert ledger["capacity"]["card"] == "a100-80gb" and ledger["capacity"]["usable"] > 70 * GIB


def test_exit_codes_are_the_verdicts(tmp_path: Path, job: Path, error: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", str(job)]) == 0
    assert cli.main(["estimate", str(job), "--gpu", "t4-16gb", "--set", "parallel.shard=1", "--strategy", "ddp"]) == 1
    bare = tmp_path / "bare.yaml"
    bare.write_text("version: 1\nbatch: {micro_batch: 1}\n")
    assert cli.main(["estimate", str(bare)]) == 3
    assert cli.main(["diagnose", str(error)]) == 1
    poem = tmp_path / "poem.txt"
    poem.write_text("shall I compare thee to a summer's day\n")
    assert cli.main(["diagnose", str(poem)]) == 2


def test_strict_makes_tight_an_error(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.verdict.judge", lambda *_: ("tight", "It is close."))
    assert cli.main(["estimate", str(job)]) == 0
    assert cli.main(["estimate", str(job), "--strict"]) == 1


def test_stated_facts_come_first(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def peak(*more: str) -> int:
        cli.main(["estimate", str(job), "--json", *more])
        return int(json.loads(capsys.readouterr().out)["totals"]["max_allocated"]["expected"])

    assert peak("--micro-batch", "8") > peak()
    assert peak("--set", "batch.micro_batch=8") == peak("--micro-batch", "8")


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ("batch.micro_batch", "FIELD=VALUE"),
        ("batch.micro_bach=2", "batch.micro_batch"),
        ("batch=3", "'batch' is a section; its fields are batch.micro_batch, "),
        ("batch.micro_batch=-3", "greater than or equal to 1"),
        ("batch.seq_len=10000000000000000", "less than or equal"),
        ("activations.checkpointing=sometimes", "'none', 'full' or 'selective'"),
    ],
)
def test_a_wrong_statement_is_a_sentence(job: Path, stated: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["estimate", str(job), "--set", stated]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_what_was_seen_moves_the_causes_and_an_unknown_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "log.txt"
    text.write_text("exits with return code = -9\n", encoding="utf-8")
    cli.main(["diagnose", str(text)])
    assert "--seen seen-oom-kill" in capsys.readouterr().out
    cli.main(["diagnose", str(text), "--seen", "seen-oom-kill"])
    assert "surely" in capsys.readouterr().out
    assert cli.main(["diagnose", str(text), "--seen", "nothing"]) == 2
    assert "seen-batch-1-fails" in capsys.readouterr().err


def test_explain_opens_the_formula(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["estimate", str(job), "--explain", "weights"])
    said = capsys.readouterr().out
    assert "source:" in said and "8,030,261,248" in said


def test_plan_prints_steps_and_lines(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["plan", str(job), "--gpu", "a10-24gb", "--seq-len", "16384", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert code == 1 and plan["verdict"] == "ooms" and plan["plan"]
    assert {"technique", "tier", "estimated", "before_gib", "after_gib", "step_time_ratio", "exact", "settings", "why"} <= set(plan["plan"][0])
    assert cli.main(["plan", str(job)]) == 0
    assert "it fits as it is" in capsys.readouterr().out


def test_diagnose_prints_the_contracts_json(error: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(error), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    wanted = {
        "version",
        "verdict",
        "phase",
        "rank",
        "findings",
        "plan",
        "next_question",
        "cleared",
        "could_not_tell",
        "job",
        "deviations",
        "ledger",
        "read",
        "assumed",
        "not_understood",
    }
    assert wanted <= set(report)
    assert report["verdict"] == "ooms"


@pytest.mark.parametrize("form", ["--markdown", "--html", "--chat", "--link"])
def test_every_form_of_a_report(error: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(error), form]) == 1
    said = capsys.readouterr().out
    assert len(said) > 40
    if form == "--chat":
        assert len(said.splitlines()) <= 6


def test_a_folder_and_standard_input(tmp_path: Path, error: Path) -> None:
    assert cli.main(["diagnose", str(tmp_path)]) == 1
    done = whole("diagnose", "-", "--json", stdin=ERROR.encode())
    assert done.returncode == 1 and json.loads(done.stdout)["verdict"] == "ooms"


def test_a_link_is_read_like_a_file(error: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["diagnose", str(error), "--link"])
    link = capsys.readouterr().out.strip()
    assert cli.main(["diagnose", f"https://advisor.example/?{link}&mystery=1", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["failures"][0]["allocated_bytes"] > 15 * GIB
    assert "mystery" in captured.err


def _bad(folder: Path) -> dict[str, Path]:
    contents = {
        "empty": b"",
        "binary": bytes(range(256)) * 64,
        "half": b'{"version": 1, "model": {"name": "x", "config": {"hidden_si',
        "bomb": b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
        "key": b"version: 1\nbatch: {micro_bach: 1}\n",
        "list": b"- 1\n- 2\n",
        "huge": b"version: 1\nmodel: {config: {num_hidden_layers: 1000000000000, hidden_size: -4}}\n",
        "deep": b"[" * 100_000,
        "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


@pytest.mark.parametrize("command", ["estimate", "plan", "diagnose"])
def test_bad_input_is_a_clear_sentence(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, file in _bad(tmp_path).items():
        code = cli.main([command, str(file)])
        captured = capsys.readouterr()
        assert code in (2, 3), (name, code)
        assert len(captured.out + captured.err) > 20, name
        assert "Traceback" not in captured.out + captured.err, name


@pytest.mark.parametrize("command", ["estimate", "plan", "diagnose", "accuracy"])
def test_a_missing_file_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "no/such/file.yaml"]) == 2
    said = capsys.readouterr().err
    assert "no/such/file.yaml" in said and "no such file" in said


def test_fifty_megabytes_are_read_in_bounded_time(tmp_path: Path) -> None:
    large = tmp_path / "log.txt"
    large.write_bytes(b"step 12 loss 0.3\n" * 3_000_000 + ERROR.encode())
    start = time.monotonic()
    done = whole("diagnose", str(large), "--json")
    assert time.monotonic() - start < 30
    assert json.loads(done.stdout)["verdict"] == "ooms"


@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [["models"], ["plan", "no-such-file", "--json"], ["diagnose", "JOB", "--set", "batch.micro_batch=-1", "--json"], ["estimate", "--wrong", "--json"]],
)
def test_a_reader_that_leaves_is_no_error(arguments: list[str], unbuffered: bool, job: Path) -> None:
    """An answer, a refusal and a wrong command line alike: no traceback, and the code that a shell gives for a closed pipe."""
    script = f"import sys; from advisor import cli; sys.exit(cli.main({[str(job) if a == 'JOB' else a for a in arguments]}))"
    process = subprocess.Popen([sys.executable, *["-u"] * unbuffered, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in said and b"BrokenPipe" not in said
    process.stderr.close()


def test_interrupted_calmly(monkeypatch: pytest.MonkeyPatch, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupted)
    assert cli.main(["estimate"]) == 130
    assert capsys.readouterr().err == "advisor: stopped\n"


@pytest.mark.parametrize("columns", [32, 40, 80, 200])
def test_lines_keep_to_the_width(columns: int, error: Path) -> None:
    done = whole("diagnose", str(error), env={"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"})
    lines = done.stdout.decode().splitlines()
    copied = [line for line in lines if "=" in line or re.fullmatch(r"\s{7,}(?:for \w.*:|[\w.\[\]]+\(.*\))", line)]  # lines to copy are never wrapped
    assert all(len(line) <= max(32, min(columns, 100)) for line in lines if line not in copied)
    assert "\x1b" not in done.stdout.decode()


def test_a_terminal_without_unicode(error: Path) -> None:
    done = whole("diagnose", str(error), env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 1
    done.stdout.decode("ascii")


def test_collect_says_what_to_paste(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert cli.main(["collect"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("advisor collect 1\n")
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in said and "hf_secret" not in said


def test_collect_survives_a_silent_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nsleep 30\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("advisor.commands.collect.SMI_SECONDS", 0.2)
    assert cli.main(["collect"]) == 0
    assert "no answer" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["cards", "models"])
def test_catalogues(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[command]) > 20


def test_ui_becomes_streamlit(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _program, line: called.append(line))
    cli.main(["ui", "--port", "8765", "--", "--server.baseUrlPath=x"])
    line = called[0]
    assert line[1:4] == ["-m", "advisor.views", "run"] and Path(line[4]).is_file()
    assert "--server.port=8765" in line and "--server.baseUrlPath=x" in line
    assert cli.main(["ui", "--port", "99999"]) == 2


def test_estimate_starts_light(job: Path) -> None:
    heavy = ["torch", "streamlit", "pandas", "rich", "altair", "numpy", "json5", "parso", "advisor.rules", "advisor.reading"]
    script = (
        f"import sys; from advisor import cli; code = cli.main(['estimate', {str(job)!r}])\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
