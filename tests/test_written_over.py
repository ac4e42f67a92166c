"""Nothing that a person saved is written over: an output that is an input, or a file of another kind, is refused and stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from advisor.cli import main

JOB = "version: 1\nmodel: {name: meta-llama/Llama-3.2-1B}\nmethod: {kind: lora}\nbatch: {micro_batch: 1, seq_len: 1024}\nhardware: {gpu: a100-80gb}\n"
TEXT = "the only copy\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "same.yaml").symlink_to("job.yaml")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mine.txt").write_text(TEXT)
    (tmp_path / "d.jsonl").write_text('{"text": "a row"}\n')
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "baseline save job.yaml --to job.yaml",
        "baseline save job.yaml --to same.yaml",
        "baseline save job.yaml --to mine.txt",
        "check job.yaml --budget 70GiB --junit job.yaml",
        "check job.yaml --budget 70GiB --junit mine.txt",
        "probe job.yaml --timeline job.yaml",
        "probe job.yaml --snapshot mine.txt",
        "validate job.yaml --save job.yaml",
        "validate job.yaml --save mine.txt",
        "run --bundle mine.txt -- true",
    ],
)
def test_what_was_saved_stays(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    assert "would be lost; name another file" in capsys.readouterr().err
    assert main(["baseline", "save", "job.yaml", "--to", "pipe"]) == 2
    assert "is a pipe, which may have no reader" in capsys.readouterr().err
    assert ((folder / "job.yaml").read_text(), (folder / "mine.txt").read_text()) == (JOB, TEXT)


def test_what_the_advisor_wrote_is_replaced(folder: Path) -> None:
    for _ in range(2):
        assert main(["baseline", "save", "job.yaml", "--to", "b.yaml"]) == 0
        assert main(["check", "job.yaml", "--budget", "70GiB", "--junit", "r.xml"]) == 0
    assert main(["check", "job.yaml", "--budget", "70GiB", "--junit", "/dev/null"]) == 0
