"""A wide range says what makes it wide and what to paste; a narrow one says nothing."""

import pytest

from advisor import knowledge
from advisor.arithmetic import estimate
from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Fact
from advisor.job import Job, read_job
from advisor.render import html, markdown, terminal, words
from advisor.render.paper import Paper
from advisor.render.width import PASTE, WIDE, explained
from advisor.run import Run, resolve
from advisor.units import show
from advisor.verdict import of_run

BASE = {
    "version": 1,
    "model": {"name": "meta-llama/Llama-3.1-8B"},
    "method": {"kind": "full"},
    "precision": {"weights": "bf16"},
    "optimizer": {"name": "adamw"},
    "batch": {"micro_batch": 2, "seq_len": 4096, "packed": True},
    "activations": {"checkpointing": "full", "attention": "flash-2", "loss": "full-fp32"},
    "framework": {"name": "trl", "versions": {"transformers": "4.57.1"}},
    "hardware": {"gpu": "h100-80gb"},
}


def job(**changes: dict) -> Job:
    return read_job({**BASE, **{section: {**BASE.get(section, {}), **change} for section, change in changes.items()}})


def with_alternatives(run: Run, path: str, *others: object) -> Run:
    from msgspec.structs import replace

    fact = Fact(path, run.job.get(path), "assumed", why="a test", alternatives=others)
    return replace(run, facts={**{p: replace(f, alternatives=()) for p, f in run.facts.items()}, path: fact})


@pytest.mark.parametrize(
    ("path", "others", "label", "paste"),
    [
        ("activations.checkpointing", ("none",), "checkpointing is assumed (full; it may be none)", "the training arguments"),
        ("batch.seq_len", (1024, 32768), "sequence length is assumed", "max_length"),
        ("method.kind", ("lora",), "method is assumed (full; it may be lora)", "the training arguments"),
    ],
)
def test_the_assumption_that_moves_most_is_named_with_what_settles_it(path: str, others: tuple, label: str, paste: str) -> None:
    run = with_alternatives(resolve(job(), Evidence()), path, *others)
    ledger = estimate(run)
    said = explained(run, ledger)
    assert said is not None and label in said and paste in said
    move = max(abs(estimate(with_value(run, path, other)).peak().bytes - ledger.peak().bytes) for other in others)
    if path != "method.kind":  # adapters bring settings of their own, which a change of the plan resolves and a range does not
        assert show(move) in said, "the figure is the run's own, re-estimated"


def with_value(run: Run, path: str, value: object) -> Run:
    section, _, name = path.partition(".")
    return run.but(**{section: {name: value}})


def test_a_narrow_range_says_nothing() -> None:
    run = with_alternatives(resolve(job(framework={"name": "trl", "versions": {"transformers": "4.57.1", "torch": "2.8.0"}}), Evidence()), "batch.micro_batch")
    ledger, _, _ = of_run(run)
    assert ledger is not None
    total = ledger.totals()["max_allocated"]
    wide = max(total.high / total.expected - 1, 1 - total.low / total.expected) > WIDE
    assert (explained(run, ledger) is not None) == wide
    assert explained(None, ledger) is None and explained(run, None) is None


def test_terminal_page_and_files_say_the_same() -> None:
    report = diagnose(list(knowledge.load_yaml("samples", "1-loss-qlora.yaml")["files"].items()))
    said = explained(report.run, report.ledger)
    assert said is not None and said.startswith("The range is wide (−")
    flat = " ".join(terminal.report(report, Paper(width=100)).split())
    assert said in flat
    assert said in html.report(report).replace("&#x27;", "'")
    assert markdown.escape(said) in markdown.report(report)


def test_what_to_paste_is_known_by_fields_that_exist() -> None:
    from advisor.job import fields

    known = {"batch.lengths", "framework.versions", *fields(), *(path.partition(".")[0] for path in fields())}
    assert set(PASTE) <= known
    assert words.field("batch.seq_len") == "Sequence length"
