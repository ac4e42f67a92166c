"""The dev cases: reported failures with their true cause, scored by how their evidence was made. Figures are floors that only rise."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.diagnosis import diagnose
from advisor.report import Report

CASES = Path(__file__).parent / "cases"
NAMES = sorted(p.name for p in CASES.iterdir() if (p / "expected.yaml").is_file()) if CASES.is_dir() else []

# share of cases by kind of evidence: first finding right, right one among three. What is claimed anywhere is claimed of "thread" and "text".
FLOORS = {"thread": (1.0, 1.0), "text": (1.0, 1.0), "constructed": (1.0, 1.0), "control": (1.0, 1.0)}
FLOOR_FIX, FLOOR_FACTS = 0.96, 0.99


@dataclass
class Tally:
    """Counts of one kind of evidence."""

    cases: int = 0
    first: int = 0
    third: int = 0
    missed: list[str] = field(default_factory=list)


@cache
def expected(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((CASES / name / "expected.yaml").read_text(encoding="utf-8"))
    return data


@cache
def report(name: str) -> Report:
    return diagnose([(file.name, file) for file in sorted((CASES / name / "input").iterdir())])


def evidence_of(name: str) -> str:
    basis = expected(name).get("basis") or {}
    return str(basis.get("evidence") or ("control" if basis.get("control") else "constructed"))


def deducible(name: str) -> bool:
    return bool(expected(name).get("deducible", True)) and bool(expected(name)["causes"])


@cache
def tallies() -> dict[str, Tally]:
    found: dict[str, Tally] = defaultdict(Tally)
    for name in NAMES:
        if not deducible(name):
            continue
        causes, tally = expected(name)["causes"], found[evidence_of(name)]
        ranked = [f.cause for f in report(name).findings]
        tally.cases += 1
        tally.first += bool(ranked) and ranked[0] in causes
        tally.third += any(c in causes for c in ranked[:3])
        if not (ranked and ranked[0] in causes):
            tally.missed.append(f"{name}: {ranked[:3]} for {causes}")
    return dict(found)


@pytest.mark.parametrize("name", NAMES)
def test_it_answers_without_a_crash_and_in_valid_json(name: str) -> None:
    answer = report(name)
    for finding in answer.findings:
        json.dumps(finding.to_json(), allow_nan=False)
        assert 0.0 <= finding.confidence <= 1.0
    for step in answer.plan.steps:
        json.dumps(step.to_json(), allow_nan=False)
    assert math.isclose(sum(f.confidence for f in answer.findings), 1.0, abs_tol=1.0)
    assert [f.confidence for f in answer.findings] == sorted((f.confidence for f in answer.findings), reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_tempting_wrong_answer_is_not_first(name: str) -> None:
    wrong, ranked = expected(name).get("not") or [], [f.cause for f in report(name).findings]
    assert not ranked or ranked[0] not in wrong


@pytest.mark.parametrize("name", [n for n in NAMES if expected(n).get("verdict")])
def test_the_verdict(name: str) -> None:
    assert report(name).verdict == expected(name)["verdict"], report(name).sentence


@pytest.mark.skipif(not NAMES, reason="tests/cases is not there")
@pytest.mark.parametrize("kind", sorted(FLOORS))
def test_the_first_finding_is_right(kind: str) -> None:
    tally = tallies()[kind]
    first, third = FLOORS[kind]
    assert tally.first >= math.floor(first * tally.cases), tally.missed
    assert tally.third >= math.floor(third * tally.cases), tally.missed


@pytest.mark.skipif(not NAMES, reason="tests/cases is not there")
def test_a_right_fix_is_among_the_first_two_steps() -> None:
    judged = [n for n in NAMES if deducible(n) and expected(n).get("fix")]
    missed = [n for n in judged if not {s.technique for s in report(n).plan.steps[:2]} & set(expected(n)["fix"])]
    assert len(missed) <= (1 - FLOOR_FIX) * len(judged), missed


@pytest.mark.skipif(not NAMES, reason="tests/cases is not there")
def test_the_stated_facts_are_read() -> None:
    asked, missed = 0, []
    for name in NAMES:
        run = report(name).run
        for path, value in (expected(name).get("facts") or {}).items():
            asked += 1
            got = None if run is None else run.job.get(path)
            if got != value and str(got) != str(value):
                missed.append(f"{name}: {path} is {got!r}, not {value!r}")
    assert len(missed) <= (1 - FLOOR_FACTS) * asked, missed


@pytest.mark.skipif(not NAMES, reason="tests/cases is not there")
def test_confidence_is_not_boasted() -> None:
    """Of the findings named with at least a given probability, as many are right as that probability says, within what chance allows."""
    pairs = [(f.confidence, f.cause in expected(n)["causes"]) for n in NAMES if deducible(n) for f in report(n).findings]
    for low, high in ((0.02, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 0.85), (0.85, 1.01)):
        inside = [(c, right) for c, right in pairs if low <= c < high]
        if len(inside) < 5:
            continue
        said = sum(c for c, _ in inside) / len(inside)
        right = sum(r for _, r in inside) / len(inside)
        allowed = 3 * math.sqrt(max(said * (1 - said), 0.01) / len(inside)) + 0.05
        assert right >= said - allowed, f"said {said:.2f}, right {right:.2f} of {len(inside)} between {low} and {high}"
