"""What a rule is: a hypothesis about a run, with its marks, its needs, and what takes it away.

A rule is one file named after its cause, in the folder of its tier, holding one ``RULE``. The engine (:mod:`advisor.rules.engine`)
reads these declarations; the tests are generated from ``fires`` and ``quiet``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, field

from advisor.evidence import Evidence
from advisor.report import Doing
from advisor.run import Run

Tier = Literal["triage", "copies", "fallback", "shard", "batch", "hardware", "spare"]
TIERS: tuple[Tier, ...] = ("triage", "copies", "fallback", "shard", "batch", "hardware", "spare")


class Mark(Struct, frozen=True):
    """Something in the evidence that speaks for (``weight`` > 0) or against (< 0) a cause.

    ``weight`` is a log-likelihood ratio: how much more often this is seen when the cause holds than when it does not (2.3 is ten
    times). ``pattern`` is searched, ignoring case, in frames ("file:function: code"), lines, or both. ``when`` looks at numbers and
    settings instead: it returns the sentence to show, or ``None``. ``source`` names what in a library prints it, or why the
    number implies it: no mark keys on how one person worded a report. ``rests_on``: job fields whose values the mark takes for granted;
    where one is only what the newest version does by default, the engine weighs the mark less (``situation.uncertain``).
    """

    id: str
    weight: float
    says: str
    source: str
    pattern: str | None = None
    on: Literal["frame", "line", "key", "any"] = "any"
    when: Callable[[Run, Evidence], str | None] | None = None
    rests_on: tuple[str, ...] = ()


class Example(Struct, frozen=True):
    """A run with evidence, for the generated tests. ``job`` in the job file's form; ``text`` as a person would paste it."""

    name: str
    job: str = ""
    text: str = ""


class Form(Struct, frozen=True):
    """The form that a cause takes here, where the evidence settles it: its own title, remedies in their own order, and what they come to."""

    title: str
    remedies: tuple[str, ...] = ()
    doing: Mapping[str, Doing] = field(default_factory=dict)


class Rule(Struct, frozen=True):
    """A cause that can be looked for.

    Attributes:
        id: the cause's id in the vocabulary; the file's name with dashes.
        title: the sentence when it holds. ``cleared``: the sentence when it was looked for and is not there.
        prior: log-odds before any evidence, from how often the cause is met; the same small scale for all rules.
        needs: job fields without which it can not be told; a missing one gives "could not tell, because ...".
        marks: evidence for and against.
        applies: whether the cause is possible for this run at all (a reference copy needs a preference objective); ``None`` is: yes.
            Returns the reason why not.
        fault: how it would really be running if this were the cause. ``None`` as a result: no estimate can be made.
        form: the form that the cause takes here; ``None`` is: its general one.
        explains: phases in which this cause makes a run fail; empty: any.
        remedies: technique ids, best first.
    """

    id: str
    tier: Tier
    title: str
    cleared: str
    marks: tuple[Mark, ...]
    remedies: tuple[str, ...]
    fires: tuple[Example, ...]
    quiet: tuple[Example, ...]
    prior: float = 0.0
    needs: tuple[str, ...] = ()
    applies: Callable[[Run, Evidence], str | None] | None = None
    fault: Callable[[Run, Evidence], Run | None] | None = None
    form: Callable[[Run, Evidence], Form | None] | None = None
    explains: tuple[str, ...] = ()
