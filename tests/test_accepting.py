"""The public functions take what a person has in hand, and say of the rest what they take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import advisor
from advisor.job import JobError

TEXT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.60 GiB of which 1.00 GiB is free."
JOB = {
    "version": 1, "model": {"name": "meta-llama/Llama-3.2-1B"}, "method": {"kind": "lora"}, "batch": {"micro_batch": 1, "seq_len": 1024},
    "hardware": {"gpu": "a100-80gb"},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "error.txt").write_text(TEXT)
    (tmp_path / "job.yaml").write_text(advisor.read_job(JOB).to_yaml())
    return tmp_path


def test_a_diagnosis_of_whatever_holds_the_text(folder: Path) -> None:
    whole = advisor.diagnose([("error.txt", TEXT)])
    assert whole.evidence.failure is not None
    forms: list[Any] = [
        TEXT, TEXT.encode(), "error.txt", str(folder), Path("error.txt"), {"error.txt": TEXT}, {"error.txt": Path("error.txt")}, [TEXT], ["error.txt"],
        [Path("error.txt")], [("error.txt", TEXT)], [["error.txt", TEXT]], (TEXT,), RuntimeError(TEXT),
    ]  # fmt: skip
    for form in forms:
        found = advisor.diagnose(form).evidence.failure
        assert found is not None, form
        assert (found.requested_bytes, found.capacity_bytes) == (whole.evidence.failure.requested_bytes, whole.evidence.failure.capacity_bytes), form


def test_a_job_in_whatever_form(folder: Path) -> None:
    job = advisor.read_job(JOB)
    run = advisor.resolve(job)
    peak, planned = advisor.estimate(run).peak().bytes, advisor.plan(run)
    text = (folder / "job.yaml").read_text()
    for form in (job, JOB, text, "job.yaml", folder / "job.yaml"):
        assert advisor.estimate(form).peak().bytes == peak
        assert advisor.plan(form, margin_bytes=None) == planned
        assert advisor.resolve(form).job == run.job


@pytest.mark.parametrize("given", [None, 7, JOB, [7], [("a", "b", "c")], object()])
def test_what_is_no_text_says_what_is_taken(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"advisor\.diagnose takes a text, a file .*to advisor\.estimate or advisor\.plan; (it was given|item 0 of the list is) "
    ):
        advisor.diagnose(given)


@pytest.mark.parametrize("function", ["estimate", "plan", "resolve"])
@pytest.mark.parametrize("given", [None, 7, [JOB], Path()])
def test_what_is_no_job_says_what_is_taken(function: str, given: Any) -> None:
    with pytest.raises(TypeError, match=rf"advisor\.{function} takes "):
        getattr(advisor, function)(given)


def test_a_job_that_is_wrong_says_where(folder: Path) -> None:
    with pytest.raises(JobError, match="did you mean 'batch'"):
        advisor.estimate({"bathc": {}})
    with pytest.raises(FileNotFoundError, match=r"no file 'jobb\.yaml'"):
        advisor.plan("jobb.yaml")
    with pytest.raises(JobError, match=r"job\.txt is neither YAML nor JSON"):
        (folder / "job.txt").write_text("{")
        advisor.estimate("job.txt")


def test_the_public_names_are_seen_before_any_is_loaded() -> None:
    code = (
        "import sys, advisor; names = dir(advisor); assert {'Job', 'diagnose', 'estimate', 'plan', 'watch', '__version__'} <= set(names), names;"
        "assert not {'Any', 'import_module'} & set(names); assert 'msgspec' not in sys.modules; from advisor import *; assert callable(estimate)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_watch_tells_of_itself_without_torch_and_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"  # as where it is not installed: importing it raises ModuleNotFoundError
        "import advisor, inspect\n"
        "assert all(getattr(advisor, name) is not None for name in dir(advisor))\n"
        "assert 'optimizer' in inspect.signature(advisor.watch).parameters and 'training loop' in inspect.getdoc(advisor.watch)\n"
        "try:\n    advisor.watch(None)\nexcept ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("ImportError advisor.watch observes a model in torch, and torch is not installed")
