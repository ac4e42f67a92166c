"""Report: the whole answer as plain data, in the order in which it is shown. Pages, command line, Markdown and JSON read only this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field

from advisor.evidence import Conflict, Evidence, Fact, NotUnderstood, Source
from advisor.ledger import Ledger
from advisor.run import Run

if TYPE_CHECKING:
    from advisor.planner.fewer import Fewer

Verdict = Literal["fits", "tight", "ooms", "not-memory", "incomplete", "unreadable"]
EXIT_CODES: Mapping[str, int] = {"fits": 0, "tight": 0, "ooms": 1, "not-memory": 1, "unreadable": 2, "incomplete": 3}


class Says(Struct, frozen=True):
    """A piece of evidence in words: what it says, where it stands, for or against, and how strongly (log-likelihood ratio)."""

    says: str
    where: str | None
    speaks_for: bool
    weight: float
    mark: str
    source: str

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        return {"says": self.says, "where": self.where, "for": self.speaks_for, "weight": round(self.weight, 2), "mark": self.mark, "source": self.source}


SAME_TIME = 0.015  # of the time of a step: less than the estimate can tell, "no change in speed" in every form


class Doing(Struct, frozen=True):
    """What a remedy comes to for one form of a cause: its title there, the reason, and the lines by place (``docker``, ``vllm``)."""

    title: str
    why: str
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Finding(Struct, frozen=True):
    """A cause with its probability. ``saves_bytes``: how much its first remedy takes off the peak of the run as it really is.

    ``doing``: by remedy, what it comes to where the evidence settles which form the cause takes.
    """

    cause: str
    tier: str
    title: str
    confidence: float
    saves_bytes: int | None
    evidence: tuple[Says, ...]
    remedies: tuple[str, ...]
    faulted: Run | None = None
    doing: Mapping[str, Doing] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        from advisor.units import gib

        return {
            "cause": self.cause, "tier": self.tier, "title": self.title, "confidence": round(self.confidence, 4),
            "saves_gib": None if self.saves_bytes is None else gib(self.saves_bytes), "evidence": [e.to_json() for e in self.evidence],
            "remedies": list(self.remedies),
        }  # fmt: skip


class Step(Struct, frozen=True):
    """One change of the plan, re-estimated together with those before it. ``settings``: exact lines by framework.

    ``times``: how often the technique was applied (a micro batch of 4 halved twice); ``run``: the run with this change and those before it.
    """

    technique: str
    title: str
    tier: str
    estimated: bool
    before_bytes: int | None
    after_bytes: int | None
    step_time_ratio: float | None
    exact: bool
    settings: Mapping[str, tuple[str, ...]]
    why: str
    fits_after: bool | None = None
    alters_learning: bool = False
    run: Run | None = None
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        from advisor.units import gib

        return {
            "technique": self.technique, "title": self.title, "tier": self.tier, "estimated": self.estimated,
            "before_gib": None if self.before_bytes is None else gib(self.before_bytes),
            "after_gib": None if self.after_bytes is None else gib(self.after_bytes),
            "step_time_ratio": None if self.step_time_ratio is None else round(self.step_time_ratio, 3),
            "exact": self.exact, "alters_learning": self.alters_learning, "fits_after": self.fits_after,
            "settings": {name: list(lines) for name, lines in self.settings.items()}, "why": self.why,
        }  # fmt: skip


class Point(Struct, frozen=True):
    """A set of changes that no other set tried beats in both memory and time; the time of a token is relative to the run as it is."""

    techniques: tuple[str, ...]
    peak_bytes: int
    step_time_ratio: float


class Plan(Struct, frozen=True):
    """The least set of changes, the runner-up, and what the search says in words."""

    steps: tuple[Step, ...] = ()
    fits: bool | None = None
    summary: str = ""
    runner_up: tuple[Step, ...] = ()
    alternatives: tuple[Step, ...] = ()  # single changes that would help, beside the plan: what the page offers to tick
    irreducible: str | None = None
    frontier: tuple[Point, ...] = ()  # memory against time, smallest first
    fewer: tuple[Fewer, ...] | None = None  # the fewest cards that would do, where that was asked: it takes longer than the plan

    def __str__(self) -> str:
        """What ``print`` shows."""
        from advisor.notebook import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from advisor.notebook import html_of

        return html_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text("..." if cycle else str(self))


class Seen(Struct, frozen=True):
    """Something that a person can answer or report back with one click: ``mark`` goes into the evidence, ``says`` stands on the button."""

    mark: str
    says: str


class Question(Struct, frozen=True):
    """The unknown fact that moves the verdict most. ``options``: plausible answers, "I don't know" is always one more.

    ``answers``: where the question is about what was seen, not about a setting: each answer is a mark of the evidence, ``field`` is no field of a job.
    """

    field: str
    text: str
    moves_bytes: int
    options: tuple[Any, ...] = ()
    answers: tuple[Seen, ...] = ()


class CouldNotTell(Struct, frozen=True):
    """A cause that could not be judged, and what is missing."""

    cause: str
    needs: str


class Report(Struct, frozen=True):
    """Everything that a diagnosis says."""

    verdict: Verdict
    sentence: str  # the verdict in one sentence, with how sure and at which moment
    phase: str
    rank: int | None
    findings: tuple[Finding, ...]
    plan: Plan
    next_question: Question | None
    cleared: tuple[tuple[str, str], ...]  # (cause, sentence)
    not_applicable: tuple[tuple[str, str], ...]
    could_not_tell: tuple[CouldNotTell, ...]
    run: Run | None
    ledger: Ledger | None  # of the run as it really is
    as_written: Ledger | None  # of the job as written, where that differs
    evidence: Evidence
    assumed: tuple[Fact, ...]
    read: tuple[Fact, ...]
    conflicts: tuple[Conflict, ...]
    not_understood: tuple[NotUnderstood, ...]
    sources: tuple[Source, ...]
    capacity_bytes: int | None
    capacity_why: str | None
    notes: tuple[str, ...] = ()
    follow_ups: tuple[Seen, ...] = ()  # what a second try can show: each moves the causes' probabilities

    @property
    def exit_code(self) -> int:
        """0: fits or tight. 1: ooms or not-memory. 2: unreadable. 3: incomplete."""
        return EXIT_CODES[self.verdict]

    def __str__(self) -> str:
        """What ``print`` shows."""
        from advisor.notebook import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from advisor.notebook import html_of

        return html_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text("..." if cycle else str(self))
