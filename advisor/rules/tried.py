"""Two tries of one switch, with what each took: "with offload 27 GB and 1547 s, without it 19 GB and 124 s"; "before prepare 13 GB, after 27 GB".

A figure beside a try says that this try ran. What differs between the two is what the switch does, whatever the rest of the run takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB, MIB, show

LONGEST = 1500  # characters of a line that are looked at
MOST = 600  # lines that are looked at: people compare in a few sentences
NEAR = 3  # clauses between two tries
SAME = 0.03  # of a figure: two runs of the same thing differ by workspaces and rounding
_CLAUSE = pattern(r"[;\n]|(?<=[a-z)])\.(?=\s)|(?<=\d)\.(?=\s)|,\s+(?=with)|\b(?:vs\.?|versus|whereas|while|but|however|against)\b", re.IGNORECASE)
_MEMORY = pattern(
    r"(?<![\w.])(?<!of )(?<!/ )(?<!/)(\d{1,6}(?:\.\d{1,3})?)\s?(GiB|GB|MiB|MB|G|M)(?![\w/])(?!\s?(?:card|gpu|a100|h100)s?\b)"
    r"(?!\s?(?:of )?(?:free|left|RAM|swap|disk)\b)",
    re.IGNORECASE,
)
# figures of something else than the card in a run: files, the host's memory, what somebody expects
_ELSEWHERE = pattern(
    r"\bon (?:the )?disk\b|\bhost (?:takes|needs|uses|RAM|memory)\b|\b(?:CPU|system) (?:RAM|memory)\b|"
    r"\bexpect\w*|\bwould\b|\bsav(?:e|es|ed|ing) (?:a|the) checkpoint\b",
    re.IGNORECASE,
)
_SECONDS = pattern(r"(?<![\w.])(\d{1,6}(?:\.\d{1,4})?)\s?(?:s(?:ec(?:ond)?s?)?(?:\s?/\s?(?:it|step|iter\w*))?)(?![\w/])", re.IGNORECASE)
_RATE = pattern(r"(?<![\w.])(\d{1,7}(?:\.\d{1,3})?)\s?(?:it/s|tps|tok(?:en)?s?/s(?:ec)?|samples/s|tokens per second)(?!\w)", re.IGNORECASE)
_LEFT_OUT = r"(?:without|w/o|no|not|never|disabl\w*|remov\w*|off|skip\w*|omit\w*)"
_WITHOUT = pattern(rf"\b{_LEFT_OUT}\b|[=:]\s*(?:False|0|none|off)\b", re.IGNORECASE)

_IT = pattern(r"\b(?:without|remov\w+|disabl\w+|turn\w* off|switch\w* off|skip\w+) (?:it|that|this|them)\b", re.IGNORECASE)
_ELIDED = pattern(r"(?:^|[\s(])(?:without|w/o|off|disabled)[\s:=,~≈(]{0,4}(?:it (?:is|was|takes|took|needs) )?[~≈]?\d", re.IGNORECASE)  # "without: 38 GB"
_RAN_OUT = pattern(r"\bOOM\w*|out of memory|fails?\b|crash\w*", re.IGNORECASE)

_AFTER_IT = pattern(  # of the stage that was just named, and of no other
    r"\bafter(?:wards)?(?: (?:it|that|this))?(?:,? (?:it )?(?:is|was|are|were|takes|took|holds|shows))?\s?[:=(]?\s?[~≈]?\s?$", re.IGNORECASE
)

OFFLOAD = r"(?:\w+[ _-])?off-?load\w*"
CHECKPOINTING = r"(?:\w+[ _.-])?checkpointing(?:_enable\w*)?|recomput\w+"
FP8 = r"(?:mx)?fp8\w*|float8\w*|--fp8[\w-]*"
SIXTEEN = r"bf16|bfloat16|fp16|16[- ]?bit"
GRAPHS = r"(?:--)?cuda[ _-]?graphs?\w*|enforce_eager\W{1,3}false"


class Try(Struct, frozen=True):
    """What one try took: bytes, seconds a step or for all, and where it is written."""

    where: str
    memory: int | None
    seconds: float | None

    @property
    def says(self) -> str:
        """The figures in words."""
        parts = [show(self.memory)] if self.memory is not None else []
        return " and ".join([*parts, *([f"{self.seconds:g} s"] if self.seconds is not None else [])])


class Pair(Struct, frozen=True):
    """A try with the switch and one without it."""

    on: Try
    off: Try

    @property
    def says(self) -> str:
        """Both in words."""
        return f"with it {self.on.says} ({self.on.where}), without it {self.off.says} ({self.off.where})"

    @property
    def saves_nothing(self) -> bool:
        """Whether the try with the switch takes as much memory as the one without, or more."""
        on, off = self.on.memory, self.off.memory
        return on is not None and off is not None and on >= (1 - SAME) * off

    @property
    def costs(self) -> bool:
        """Whether the try with the switch takes clearly more memory."""
        on, off = self.on.memory, self.off.memory
        return on is not None and off is not None and on > (1 + SAME) * off

    @property
    def slower(self) -> bool:
        """Whether the try with the switch takes clearly longer."""
        on, off = self.on.seconds, self.off.seconds
        return on is not None and off is not None and on > 1.3 * off


def pair(evidence: Evidence, switch: str, other: str = "", owner: str = "") -> Pair | None:
    """The first two tries of a switch that stand beside each other.

    ``other``: what stands in its place where it is off (``bf16`` for fp8). ``owner``: what sets the switch, and may be named for it.
    """
    named, instead = re.compile(rf"(?<![\w]){switch}|\b(?:{owner})\b" if owner else rf"(?<![\w]){switch}", re.IGNORECASE), re.compile(rf"\b(?:{other})\b", re.I)
    last: dict[bool, tuple[int, Try]] = {}
    heard = -NEAR - 1  # the clause in which the switch was last named
    for number, (clause, found) in enumerate(_clauses(evidence)):
        mentioned = named.search(clause)
        heard = number if mentioned else heard
        if found is None:
            continue
        left = _WITHOUT.search(clause)
        replaced = bool(other) and instead.search(clause) is not None and mentioned is None
        if mentioned:
            on = left is None or not _of_switch(clause, left, mentioned)
        elif replaced or (left is not None and number - heard <= NEAR and (_IT.search(clause) or _ELIDED.search(clause))):
            on = False
        else:  # figures that name no switch are of any try
            continue
        last[on] = number, found
        opposite = last.get(not on)
        if opposite is not None and number - opposite[0] <= NEAR and _comparable(found, opposite[1]) and heard >= 0:
            return Pair(last[True][1], last[False][1])
    return None


def without(evidence: Evidence, switch: str) -> Try | None:
    """A try without a switch that ran: figures in a clause that leaves it out, and no word of running out."""
    named = re.compile(rf"(?<![\w]){switch}", re.IGNORECASE)
    heard = -NEAR - 1
    for number, (clause, found) in enumerate(_clauses(evidence)):
        mentioned = named.search(clause)
        heard = number if mentioned else heard
        left = _WITHOUT.search(clause)
        if found is None or found.memory is None or left is None or _RAN_OUT.search(clause):
            continue
        if (mentioned and _of_switch(clause, left, mentioned)) or (
            not mentioned and 0 < number - heard <= NEAR and (_IT.search(clause) or _ELIDED.search(clause))
        ):
            return found
    return None


def before_after(evidence: Evidence, stage: str) -> tuple[Try, Try] | None:
    """The memory before and after a stage that a line names: ``before prepare 13.5 GB``, ``after prepare: 27.0 GB``."""
    before, after = (re.compile(rf"\b{word}\b[^\n]{{0,40}}?{stage}", re.IGNORECASE) for word in ("before", "after"))
    first: tuple[int, Try] | None = None
    for number, line in enumerate(evidence.lines):
        if len(line.text) > LONGEST:
            continue
        sizes = list(_MEMORY.finditer(line.text))
        if not sizes:
            continue
        text = line.text
        if (begun := before.search(text)) is not None:
            between = text[sizes[0].end() : sizes[1].start()] if len(sizes) == 2 and begun.start() < sizes[0].start() else ""
            if _AFTER_IT.search(between) or after.search(between):
                return Try(line.where, _bytes(sizes[0]), None), Try(line.where, _bytes(sizes[1]), None)
            first = (number, Try(line.where, _bytes(sizes[0]), None)) if len(sizes) == 1 and after.search(text) is None else None
        elif first is not None and len(sizes) == 1 and (after.search(text) or (number - first[0] == 1 and _AFTER_IT.search(text[: sizes[0].start()]))):
            return first[1], Try(line.where, _bytes(sizes[0]), None)
    return None


def _of_switch(clause: str, left: re.Match[str], named: re.Match[str]) -> bool:
    """Whether a negation belongs to the switch: right before it, or behind it as a value."""
    between = clause[left.end() : named.start()] if left.start() < named.start() else clause[named.end() : left.start()]
    return len(between) <= 24 and not _MEMORY.search(between)


def _clauses(evidence: Evidence) -> list[tuple[str, Try | None]]:
    """The clauses of all lines with the figures of each; none at all where fewer than two have figures. Found once."""
    if "tried-clauses" not in evidence.noted:
        found = list(_split(evidence))
        evidence.noted["tried-clauses"] = found if sum(figures is not None for _, figures in found) >= 2 else []
    clauses: list[tuple[str, Try | None]] = evidence.noted["tried-clauses"]
    return clauses


def _split(evidence: Evidence) -> Iterator[tuple[str, Try | None]]:
    for line in evidence.lines[:MOST]:
        if len(line.text) > LONGEST or "ried to allocate" in line.text:
            continue
        for clause in _CLAUSE.split(line.text):
            if clause and clause.strip():
                yield clause, _figures(line.where, clause)


def _figures(where: str, clause: str) -> Try | None:
    if _ELSEWHERE.search(clause):
        return None
    size, seconds, rate = _MEMORY.search(clause), _SECONDS.search(clause), _RATE.search(clause)
    took = float(seconds[1]) if seconds else 1 / float(rate[1]) if rate and float(rate[1]) else None
    return Try(where, _bytes(size) if size else None, took) if size or took is not None else None


def _bytes(found: re.Match[str]) -> int:
    return round(float(found[1]) * (GIB if found[2][0] in "Gg" else MIB))


def _comparable(a: Try, b: Try) -> bool:
    return (a.memory is not None and b.memory is not None) or (a.seconds is not None and b.seconds is not None)
