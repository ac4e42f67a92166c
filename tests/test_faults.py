"""A fault of ours in a reader, a rule or the plan is told and leaves the rest of the answer; in the tests it is let through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor import planning
from advisor.cli import main
from advisor.diagnosis import diagnose
from advisor.reading import gathering, reading
from advisor.rules import engine

ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. "
    "Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 0.5 GiB is "
    "reserved by PyTorch but unallocated."
)
SECRET = "value of the user"


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVISOR_STRICT")


def broken(*_: Any, **__: Any) -> Any:
    raise KeyError(SECRET)


def test_a_reader(monkeypatch: pytest.MonkeyPatch, calm: None) -> None:
    monkeypatch.setattr(reading, "take_config", broken)
    report = diagnose([("error.txt", ERROR)])
    assert report.evidence.failure is not None
    (said,) = [n.why for n in report.not_understood if "fault of the advisor" in n.why]
    assert "KeyError" in said and SECRET not in said


def test_a_rule(monkeypatch: pytest.MonkeyPatch, calm: None) -> None:
    rules = engine.all_rules()
    marks = engine._marks
    monkeypatch.setattr(engine, "_marks", lambda rule, *rest: broken() if rule is rules[0] else marks(rule, *rest))
    report = diagnose([("error.txt", ERROR)])
    assert [c.cause for c in report.could_not_tell if "fault of the advisor" in c.needs] == [rules[0].id]


def test_the_plan(monkeypatch: pytest.MonkeyPatch, calm: None) -> None:
    monkeypatch.setattr(planning, "plan", broken)
    report = diagnose([("error.txt", ERROR)])
    assert report.verdict == "ooms"
    assert "fault of the advisor" in (report.plan.summary or "")


def test_the_command(monkeypatch: pytest.MonkeyPatch, calm: None, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    monkeypatch.setattr(gathering, "failures_of", broken)
    monkeypatch.setattr(reading, "merge", broken)
    (tmp_path / "e.txt").write_text(ERROR)
    assert main(["diagnose", str(tmp_path / "e.txt"), "--json"]) == 2
    out, err = capsys.readouterr()
    assert "fault of the advisor" in json.loads(out)["error"]
    assert err.count("\n") == 1 and SECRET not in err


def test_the_tests_let_it_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "take_config", broken)
    with pytest.raises(KeyError):
        diagnose([("error.txt", ERROR)])
