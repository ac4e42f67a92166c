"""Where a bundle goes, what is said when it cannot go there, and what a later diagnosis makes of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.commands.diagnose import items
from advisor.launching import bundle
from advisor.reading import read
from advisor.reading.reading import BUNDLE

DATA = {
    bundle.KEY: bundle.VERSION,
    "open": "advisor diagnose THIS_FILE",
    "link": "v=1",
    "job": {"batch": {"micro_batch": 7}},
    "findings": ["CUDA out of memory"],
}


def test_a_folder_that_is_not_there_is_said_before_the_program_starts(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    line = [sys.executable, "-m", "advisor", "run", "--bundle", str(tmp_path / "no" / "x.md"), "--", "touch", str(ran)]
    done = subprocess.run(line, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert "there is no folder" in done.stderr.decode()
    assert not ran.exists()


def test_a_bundle_that_went_elsewhere_says_where_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(elsewhere))
    said = bundle.kept(tmp_path / "gone" / "b.json", DATA)
    assert "could not be written (No such file or directory)" in said
    assert str(elsewhere / "b.json") in said
    assert bundle.query_of((elsewhere / "b.json").read_text()) == "v=1"
    assert "could not" not in bundle.kept(elsewhere / "c.json", DATA)


def test_a_bundle_of_any_name_is_opened(tmp_path: Path) -> None:
    from advisor.commands.diagnose import _of_bundle

    bundle.write(tmp_path / "b.md", DATA)
    assert _of_bundle(tmp_path / "b.md") == "v=1"
    (tmp_path / "other.md").write_bytes(b"\xff\xfe advisor_bundle")
    assert _of_bundle(tmp_path / "other.md") is None


def test_a_bundle_in_a_folder_is_an_earlier_diagnosis_and_nothing_of_it_is_read(tmp_path: Path) -> None:
    bundle.write(tmp_path / "advisor-diagnosis-1.json", DATA)
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 2 train.py --per_device_train_batch_size 3 --model_name_or_path gpt2\n")
    found = read(items([str(tmp_path)]))
    assert found.job.batch.micro_batch == 3
    assert not found.evidence.failures
    assert not found.evidence.not_understood
    assert [source.kind for source in found.evidence.sources if source.name.endswith(".json")] == ["earlier diagnosis"]
    alone = read([("b.json", json.dumps(DATA, indent=1))])
    assert alone.state == "unreadable"
    assert "give it alone" in (alone.why or "")


def test_the_readers_know_a_bundle_by_its_key() -> None:
    assert json.dumps(bundle.KEY) == BUNDLE
