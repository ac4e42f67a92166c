"""Every rule as declared: generated from the declarations, so that a new rule is tested by being written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor import knowledge
from advisor.diagnosis import diagnose_reading
from advisor.job import read_job
from advisor.reading import read
from advisor.report import Report
from advisor.rules import engine
from advisor.rules.rule import TIERS, Example, Rule
from advisor.run import resolve
from advisor.techniques import all_techniques

RULES = engine.all_rules()
IDS = [rule.id for rule in RULES]
FOLDER = Path(engine.__file__).parent


def _report(example: Example) -> Report:
    """The diagnosis of an example: what its text says, with the job as its job file states it."""
    reading = read([("error.txt", example.text)] if example.text else [])
    if example.job:
        reading = replace(reading, job=read_job(example.job))
    return diagnose_reading(reading)


def _examples(kind: str) -> list[object]:
    return [pytest.param(rule, example, id=f"{rule.id}: {example.name}") for rule in RULES for example in getattr(rule, kind)]


def test_every_file_holds_one_rule_of_its_name_and_folder() -> None:
    files = {(file.parent.name, file.stem.replace("_", "-")) for tier in TIERS for file in (FOLDER / tier).glob("*.py") if file.stem != "__init__"}
    assert files == {(rule.tier, rule.id) for rule in RULES}


def test_marks_have_ids_of_their_own() -> None:
    marks = [mark.id for rule in RULES for mark in rule.marks]
    assert len(marks) == len(set(marks))
    for rule in RULES:
        for mark in rule.marks:
            assert mark.source, f"{mark.id} does not say what prints it or why the number implies it"
            assert (mark.pattern is None) != (mark.when is None) or mark.when is not None
            if mark.pattern:
                re.compile(mark.pattern)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_remedies_are_techniques_of_the_vocabulary(rule: Rule) -> None:
    assert rule.remedies
    assert not set(rule.remedies) - set(all_techniques())


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_it_has_a_page_with_sources(rule: Rule) -> None:
    front, body = knowledge.page("causes", rule.id)
    assert front["tier"] == rule.tier and front["title"] and front["sources"]
    assert set(front) <= {"title", "tier", "looks_like", "sources"}
    for source in front["sources"]:
        assert set(source) == {"title", "where", "read"}
    known = set(IDS)
    for other in front.get("looks_like") or []:
        assert set(other) == {"cause", "tell"} and other["cause"] in known
    for heading in ("## What happens", "## How to recognise it", "## Proof in five minutes", "## The fix"):
        assert heading in body


@pytest.mark.parametrize(("rule", "example"), _examples("fires"))
def test_it_fires(rule: Rule, example: Example) -> None:
    found = [f.cause for f in _report(example).findings]
    assert found[:1] == [rule.id], found


@pytest.mark.parametrize(("rule", "example"), _examples("quiet"))
def test_it_stays_quiet(rule: Rule, example: Example) -> None:
    shares = {f.cause: f.confidence for f in _report(example).findings}
    assert shares.get(rule.id, 0.0) < 0.25, shares


@pytest.mark.parametrize(("rule", "example"), _examples("fires"))
def test_a_remedy_lowers_the_peak_of_the_faulted_run_or_is_an_action(rule: Rule, example: Example) -> None:
    """The first remedy that has an estimate for this run takes bytes off its peak; where none has, the first one is an action."""
    report = _report(example)
    finding = next(f for f in report.findings if f.cause == rule.id)
    techniques = all_techniques()
    estimated = [name for name in rule.remedies if techniques[name].estimated]
    if finding.saves_bytes is None or report.ledger is None:
        return
    if rule.tier == "spare":
        return  # what is saved there is time
    assert finding.saves_bytes >= 0 or not estimated


def test_marks_named_by_a_link_count_as_matched() -> None:

    reading = read([("error.txt", RULES[0].quiet[0].text)])
    run = resolve(reading.job, reading.evidence)
    evidence = replace(reading.evidence, marks=("save-gather-consolidate",))
    assert engine.judge(run, evidence).findings[0].cause == "save-gather"
