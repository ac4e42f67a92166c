"""Lessons: a prediction before the engine's figure, then a failure whose cause the engine names. Written in ``knowledge/lessons/``.

Figures and causes are never typed in: both are computed when a lesson is opened. A team adds its own as files of the same form, in the
folder ``lessons`` of the one that ``ADVISOR_TEAM`` names (:mod:`advisor.team`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, convert

from advisor import knowledge, team
from advisor.arithmetic import estimate
from advisor.evidence import Evidence, Fact
from advisor.job import read_job
from advisor.ledger import Holding, Ledger
from advisor.report import Report
from advisor.run import Run, resolve
from advisor.units import gib

if TYPE_CHECKING:
    from advisor.render.lifetimes import Frame

NEAR, ROUGH = 0.25, 1.0  # of the figure: within a quarter is right, within its double or half is the right order


class _Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a lesson: unknown keys are errors."""


class Ask(_Strict, frozen=True, kw_only=True):
    """A figure to predict, in GiB: the whole peak, or one or several parts at the largest moment of a phase."""

    text: str
    measure: Literal["peak", "part", "parts"]
    part: str | None = None
    parts: tuple[str, ...] = ()
    phase: str | None = None
    job: Mapping[str, Any]
    hint: str

    def __post_init__(self) -> None:
        if self.measure != "peak" and (not self.wanted or self.phase is None):
            raise ValueError("a part is asked for at a phase: give both")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The parts that are asked for."""
        return (self.part,) if self.part else self.parts


class Failure(_Strict, frozen=True, kw_only=True):
    """A failure to diagnose: a sample of ``knowledge/samples`` or files, and causes to choose from. ``cause`` is held against the engine in tests."""

    text: str
    sample: str | None = None
    files: Mapping[str, str] | None = None
    cause: str
    choices: Annotated[tuple[str, ...], Meta(min_length=2)]
    hint: str


class Lesson(_Strict, frozen=True, kw_only=True):
    """One lesson; ``body`` is Markdown, ``after`` what is said once the figure is shown."""

    title: str
    ask: Ask
    after: str
    failure: Failure
    step: str | None = None  # a recorded step to scrub through: a file beside the lesson
    body: str = ""


def names() -> tuple[str, ...]:
    """The lessons in their order, the team's own after the eight."""
    return (*knowledge.page_names("lessons"), *team.lessons())


def lesson(name: str) -> Lesson:
    """The lesson of a name.

    Raises:
        knowledge.KnowledgeError: there is none, or it is not in its form.
    """
    front, body = team.page(name) if name in team.lessons() else knowledge.page("lessons", name)
    try:
        return convert({**front, "body": body}, Lesson)
    except ValueError as error:
        raise knowledge.KnowledgeError(f"lessons/{name}.md: {error}") from None


def recorded(name: str) -> tuple[str, str, tuple[Frame, ...]]:
    """A recorded step: what ran, who recorded it, and its frames; of the team's lessons where it lies beside them.

    Raises:
        knowledge.KnowledgeError: there is no such file, or it is not in its form.
    """
    from advisor.render.lifetimes import of_json

    own = team.beside_lessons(name)
    try:
        found = json.loads((own or knowledge.path("lessons", name)).read_text(encoding="utf-8"))
        return found["says"], found["source"], of_json(found["frames"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise knowledge.KnowledgeError(f"lessons/{name}: no recorded step can be read ({type(error).__name__})") from None


@cache
def first_week() -> tuple[Failure, ...]:
    """Six real failures for a first week, from the easiest to name to the hardest."""
    return tuple(Failure(**entry) for entry in knowledge.load_yaml("lessons", "first-week.yaml"))


def run_of(ask: Ask) -> Run:
    """The run that a prediction is about."""
    job = read_job(dict(ask.job))
    return resolve(job, Evidence(facts=tuple(Fact(p, job.get(p), "stated") for p in ("batch.micro_batch", "batch.seq_len"))))


def figure(ask: Ask) -> tuple[float, Ledger, tuple[Holding, ...]]:
    """The engine's figure in GiB, the ledger, and the holdings that make it up."""
    ledger = estimate(run_of(ask))
    peak = ledger.peak(None if ask.phase is None else (ask.phase,))
    held = tuple(h for h in peak.holdings if ask.measure == "peak" or h.part in ask.wanted)
    return gib(sum(h.bytes for h in held), 2), ledger, held


def judged(prediction: float, true: float) -> Literal["right", "rough", "far"]:
    """How near a prediction is."""
    off = abs(prediction - true) / true if true else float("inf")
    return "right" if off <= NEAR else "rough" if prediction > 0 and max(prediction / true, true / prediction) <= 1 + ROUGH else "far"


def files_of(failure: Failure) -> dict[str, str]:
    """The texts of a failure by name."""
    return dict(failure.files) if failure.files else dict(knowledge.load_yaml("samples", f"{failure.sample}.yaml")["files"])


def source_of(failure: Failure) -> str:
    """Where a failure is from."""
    return (
        "made for this lesson, in the form that the library prints"
        if failure.files
        else str(knowledge.load_yaml("samples", f"{failure.sample}.yaml")["source"])
    )


def diagnosed(failure: Failure) -> Report:
    """The engine's answer to it."""
    from advisor.diagnosis import diagnose

    return diagnose(list(files_of(failure).items()))
