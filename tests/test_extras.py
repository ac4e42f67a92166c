"""What an extra brings and is not installed is named, with how to install it; what is handed over and is something else is named too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import advisor
from advisor.cli import main
from advisor.commands import validate

JOB = """
version: 1
model: {name: meta-llama/Llama-3.2-1B}
method: {kind: lora}
batch: {micro_batch: 1, seq_len: 1024}
hardware: {gpu: a100-80gb, gpus_per_node: 1}
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(JOB)
    return str(tmp_path / "job.yaml")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error, where the exit code is the probe's: nothing is wrong with the job."""
    assert main([*arguments, "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "incomplete"
    return str(said["error"])


@pytest.mark.parametrize("missing", ["torch", "transformers"])
@pytest.mark.parametrize("more", [[], ["--largest"], ["--nproc", "2"]])
def test_validate_names_what_is_missing(job: str, missing: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(validate, "find_spec", lambda name: None if name == missing else SimpleNamespace())
    monkeypatch.setattr(validate, "_ran", lambda *_: pytest.fail("nothing is started"))
    said = told(capsys, "validate", job, *more)
    assert missing in said and "[probe]" in said


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_validate_names_what_the_child_misses(job: str, prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(validate, "find_spec", lambda _: SimpleNamespace())
    said = f"{prefix}Traceback (most recent call last):\n{prefix}  ...\n{prefix}ModuleNotFoundError: No module named 'peft.tuners'\n"
    monkeypatch.setattr(validate, "_ran", lambda *_: (1, said))
    error = told(capsys, "validate", job)
    assert "peft" in error and "[probe]" in error and "Traceback" not in error and "ModuleNotFoundError" not in error


def test_a_guide_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    report = advisor.diagnose([("error.txt", OOM)])
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r"\[notebook\]") as raised:
        advisor.guide(report)
    assert raised.value.name == "ipywidgets"


@pytest.mark.parametrize("name", ["model", "optimizer", "error"])
@pytest.mark.parametrize("value", [object(), "meta-llama/Llama-3.2-1B", [1], dict, 7])
def test_what_is_no_live_object_is_named(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} is .*expected"):
        advisor.diagnose([("error.txt", OOM)], **{name: value})
