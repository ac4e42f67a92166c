# ruff: noqa: E501  hand-made data reads better in one line
"""Every form says the same: verdict, peak, first cause, first change with its line. None lets a log's text become markup."""

import json
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from advisor.evidence import Conflict, Fact
from advisor.ledger import PARTS, PHASES
from advisor.render import chat, html, markdown, terminal, words
from advisor.render import json as as_json
from advisor.render.paper import Paper
from advisor.report import Plan, Report, Step
from advisor.units import show

FORMS = {
    "terminal": lambda r: terminal.report(r, Paper()),
    "markdown": markdown.report,
    "html": html.report,
    "chat": chat.report,
    "json": lambda r: as_json.text(as_json.of_report(r)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_essentials_are_in_every_form(form: str, report: Report) -> None:
    said = " ".join(FORMS[form](report).split()).replace("\\", "")
    for needed in ("31.2 GiB at the loss", "The logits and their loss are the peak", "use_liger_kernel=True", "How long are the sequences?"):
        assert needed in said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verdict", sorted(words.VERDICTS))
def test_an_empty_report_is_shown_too(form: str, verdict: str, report: Report) -> None:
    empty = replace(
        report, verdict=verdict, findings=(), plan=Plan(), next_question=None, cleared=(), not_applicable=(), could_not_tell=(), run=None, ledger=None, assumed=(), read=(),
        conflicts=(), not_understood=(), sources=(), capacity_bytes=None, capacity_why=None, notes=(),
    )  # fmt: skip
    assert len(FORMS[form](empty)) > 20


def test_json_is_the_contracts(report: Report) -> None:
    data = json.loads(FORMS["json"](report))
    finding, step = data["findings"][0], data["plan"][0]
    assert finding["evidence"][0]["for"] is True and finding["saves_gib"] == 7.0
    assert (step["before_gib"], step["after_gib"], step["settings"]) == (31.0, 24.0, {"trl": ["use_liger_kernel=True"]})
    assert data["next_question"]["moves_gib"] == 9.0
    assert (
        sum(h["bytes"] for h in data["ledger"]["peak"]["holdings"] if h["part"] not in ("context", "allocator"))
        == data["ledger"]["totals"]["max_allocated"]["expected"]
    )


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_terminal_lines_keep_to_the_paper(width: int, report: Report) -> None:
    paper = Paper(width=width)
    for line in terminal.report(report, paper).splitlines():
        assert len(line) <= paper.width, line


def test_colour_changes_no_word(report: Report) -> None:
    plain = terminal.report(report, Paper())
    coloured = terminal.report(report, Paper(colour=True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_ascii_terminals_get_ascii_bars(report: Report) -> None:
    bars = terminal.report(report, Paper(unicode=False))
    assert "#" in bars and "█" not in bars


def test_the_gauge_shows_what_is_over_the_line() -> None:
    inside, over = Paper(width=60, unicode=False), Paper(width=60, unicode=False)
    inside.gauge(10, 40)
    over.gauge(50, 40)
    assert "!" not in inside.lines[0] and "!" in over.lines[0]
    assert inside.lines[0].count("|") == over.lines[0].count("|") == 1


def test_html_is_self_contained_and_well_formed(report: Report) -> None:
    page = html.report(report)
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")

    class Checker(HTMLParser):
        open_: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not any(name.startswith("on") for name, _ in attrs)

    Checker().feed(page)
    assert page.count("<table") == page.count("</table>") and page.count("<ol") == page.count("</ol>")


def test_markdown_escapes_what_a_log_says(report: Report) -> None:
    said = markdown.report(report)
    assert "**bold**" not in said
    assert not re.search(r"(?<!\\)<script", said) and not re.search(r"(?<!\\)\]\(javascript", said)


def test_chat_is_six_lines_at_most(report: Report) -> None:
    said = chat.report(report)
    assert len(said.splitlines()) <= 6 and all(len(line) <= chat.LONGEST_LINE for line in said.splitlines())


@pytest.mark.parametrize("needed", [1, 2, 3, 5])
def test_chat_names_every_step_up_to_the_one_that_fits(report: Report, needed: int) -> None:
    steps = tuple(Step(f"t{n}", f"Step {n}", "batch", True, 2, 1, None, True, {}, "", fits_after=n == needed - 1) for n in range(needed + 1))
    said = chat.report(replace(report, plan=replace(report.plan, steps=steps)))
    assert all(f"Step {n}" in said for n in range(needed)) and f"Step {needed}" not in said
    assert "fits from here on" in said and len(said.splitlines()) <= 6


def test_every_part_phase_and_verdict_has_its_own_word() -> None:
    assert len({words.part(p) for p in PARTS}) == len(PARTS)
    assert len({words.colour(p) for p in PARTS}) == len(PARTS), "two parts share a colour"
    assert all(words.meaning(p) for p in PARTS)
    assert set(PHASES) <= set(words.PHASES) and set(PHASES) <= set(words.MOMENTS)


def test_field_words_are_of_known_fields() -> None:
    from advisor import knowledge
    from advisor.job import fields

    loaded = knowledge.load_yaml("fields.yaml")
    assert set(loaded) <= set(fields())
    assert all(entry["label"] and entry["help"].endswith(".") for entry in loaded.values())
    assert len({entry["label"] for entry in loaded.values()}) == len(loaded)


def test_explaining_a_part_shows_numbers_and_source(report: Report) -> None:
    assert report.run is not None and report.ledger is not None
    said = terminal.estimate(report.run, report.ledger, "ooms", "It does not.", Paper(), part="weights")
    holding = next(h for h in report.ledger.holdings if h.part == "weights")
    assert show(holding.bytes) in said and "source:" in said


@pytest.mark.parametrize(
    ("kept", "other", "texts"),
    [
        ("33.json:1", "33.json:1", 1),
        ("train.py:3", "train.py:30", 1),
        ("a:1/train.py:3", "a:1/eval.py:3", 2),
        ("33.json:1", "train.sh:1", 2),
        (None, None, 2),  # not known to be one
        ("33.json:1", None, 2),
    ],
)
def test_one_text_with_two_values_is_not_called_two(kept: str | None, other: str | None, texts: int, report: Report) -> None:
    pair = [Fact("batch.micro_batch", number, "read", where=where) for number, where in ((4, kept), (8, other))]
    (said,) = words.disagreements(replace(report, conflicts=(Conflict("batch.micro_batch", *pair),), notes=()))
    assert ("One text" in said, "Two texts" in said) == (texts == 1, texts == 2)
    assert "4" in said and "8" in said and "Micro batch" in said


def test_what_was_assumed_says_why_and_no_modules_name(report: Report) -> None:
    facts = (
        Fact("parallel.shard", 8, "inferred", "resolving", "8 GPUs / replicate 1"),
        Fact("hardware.gpu", "a10-24gb", "assumed", "error.txt:12", "one of 3 cards of this size"),
        Fact("hardware.nodes", 1, "assumed", None, "no further node was named"),
    )
    for text in (markdown.report(replace(report, assumed=facts)), html.report(replace(report, assumed=facts))):
        assert "8 GPUs / replicate 1" in text and "resolving" not in text
        assert "one of 3 cards of this size (error.txt:12)" in text and "no further node was named" in text
