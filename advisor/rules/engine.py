"""The engine: every rule looked at, its marks and its hypothesis weighed, and the causes ranked with a probability each.

A cause's score is a sum of log-likelihood ratios: its prior, the marks that matched, and how much better the counters of the failure
are explained by the run with the fault than by the run as written. A softmax over all causes that can be told, together with "none
of these", turns scores into probabilities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.faults import Contained
from advisor.job import JobError
from advisor.reading.literals import Words, needed
from advisor.reading.pattern import pattern
from advisor.report import CouldNotTell, Finding, Says
from advisor.rules import counters, host, kept, observing, points, residual, slopes
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import TIERS, Mark, Rule
from advisor.rules.situation import uncertain
from advisor.run import Run

NONE_OF_THESE = 1.0  # log-odds that the true cause is not in the vocabulary, or leaves no mark
ALONE = 0.4  # how much a better explanation of the numbers counts when no text speaks for the fault: about ten faults could add such bytes
UNEXPLAINED = -0.5  # a fit of the run as written below which a fault is looked for even where no text speaks for it
UNCERTAIN = 0.5  # of the weight of what rests on a newest version's default or an assumption: the run may be of any version
OVERRULES = 2.5  # what a text shows this clearly is looked at even where the settings, as far as they were read, leave no room for it
SHOWN_FROM = 0.02  # below this probability a cause that was looked for is called cleared
MOST_TEXT = 20_000  # lines and frames beyond this many are not searched: the reader keeps the telling ones first


class Judgement(Struct, frozen=True):
    """What the engine found: causes most likely first, and what became of every other rule."""

    findings: tuple[Finding, ...]
    none: float  # probability of "none of these"
    cleared: tuple[tuple[str, str], ...]
    not_applicable: tuple[tuple[str, str], ...]
    could_not_tell: tuple[CouldNotTell, ...]


class _Weighed(Struct, frozen=True):
    rule: Rule
    score: float
    says: tuple[Says, ...]
    faulted: Run | None


@cache
def all_rules() -> tuple[Rule, ...]:
    """The rule of every file in the tiers' folders, in the order of tiers.

    Raises:
        ValueError: where a rule's id is not its file's name or its tier not its folder.
    """
    found = []
    for tier in TIERS:
        for file in sorted((Path(__file__).parent / tier).glob("*.py")):
            if file.stem == "__init__":
                continue
            rule: Rule = import_module(f"advisor.rules.{tier}.{file.stem}").RULE
            if (rule.id, rule.tier) != (file.stem.replace("_", "-"), tier):
                raise ValueError(f"{tier}/{file.name} declares {rule.id!r} of tier {rule.tier!r}")
            found.append(rule)
    return tuple(found)


def judge(run: Run, evidence: Evidence) -> Judgement:
    """Rank the causes of a failure (or of a footprint that is larger than expected)."""
    weighed: list[_Weighed] = []
    cleared, not_applicable, could_not_tell = [], [], []
    texts = _texts(evidence)
    written = _written(run, evidence)
    for rule in all_rules():
        with Contained() as fault:
            says = tuple(_marks(rule, run, evidence, texts))
            told = sum(s.weight for s in says if s.speaks_for)
            seen = told > 0
            reason = rule.applies(run, evidence) if rule.applies else None
            printed = {mark.id for mark in rule.marks if mark.pattern is not None}
            if reason is not None and sum(s.weight for s in says if s.mark in printed) < OVERRULES:
                not_applicable.append((rule.id, reason))
                continue
            lacking = [path for path in rule.needs if _lacks(run, path)]
            if lacking and not seen:
                could_not_tell.append(CouldNotTell(rule.id, f"needs {', '.join(lacking)}"))
                continue
            faulted = _faulted(rule, run, evidence) if told >= 1 or written.value < UNEXPLAINED or points.series(evidence) else None
            says = (*says, *_numbers(faulted, run, evidence, rule, written, told), *slopes.told(rule.id, faulted, run, evidence))
            if not any(s.speaks_for for s in says):
                cleared.append((rule.id, rule.cleared))
                continue
            says = (*says, *observing.told(rule, faulted or run, evidence), *host.against(rule.id, evidence), *kept.against(rule.id, evidence))
            weighed.append(_Weighed(rule, rule.prior + sum(s.weight for s in says), says, faulted))
        if fault.said is not None:
            could_not_tell.append(CouldNotTell(rule.id, fault.said))
    shares, none = _probabilities(weighed, NONE_OF_THESE + observing.of_none(evidence))
    findings = []
    for item, share in sorted(zip(weighed, shares, strict=True), key=lambda pair: -pair[1]):
        if share < SHOWN_FROM:
            cleared.append((item.rule.id, _outweighed(item) or item.rule.cleared))
            continue
        findings.append(_finding(item, share, run, evidence))
    return Judgement(tuple(findings), none, tuple(cleared), tuple(not_applicable), tuple(could_not_tell))


def _outweighed(item: _Weighed) -> str | None:
    """What is said of a cause that has signs, where others explain the failure far better: never that it is not there."""
    told = max((s for s in item.says if s.speaks_for and s.weight >= 1), key=lambda s: s.weight, default=None)
    return None if told is None else f"There is a sign of it ({told.says}), but what was found explains the failure far better."


def _finding(item: _Weighed, share: float, run: Run, evidence: Evidence) -> Finding:
    rule = item.rule
    ordered = tuple(sorted(item.says, key=lambda s: -abs(s.weight)))
    form = rule.form(run, evidence) if rule.form else None
    if form is None:
        return Finding(rule.id, rule.tier, rule.title, share, None, ordered, rule.remedies, item.faulted)
    return Finding(rule.id, rule.tier, form.title, share, None, ordered, form.remedies or rule.remedies, item.faulted, form.doing)


def _faulted(rule: Rule, run: Run, evidence: Evidence) -> Run | None:
    try:
        return rule.fault(run, evidence) if rule.fault else None
    except JobError:  # the changed job would be one that cannot be: then this is not how it runs
        return None


def _probabilities(weighed: list[_Weighed], of_none: float) -> tuple[list[float], float]:
    scores = [of_none, *(w.score for w in weighed)]
    top = max(scores)
    parts = [math.exp(s - top) for s in scores]
    total = sum(parts)
    none, *rest = (p / total for p in parts)
    return rest, none


def _lacks(run: Run, path: str) -> bool:
    if path.startswith("model."):
        return run.architecture is None
    return path in run.missing or run.job.get(path) is None


class Texts(NamedTuple):
    """What patterns are searched in: (where, text) each, and all of it in folded case, for what is certainly not in it."""

    each: list[tuple[str, str]]
    folded: str


def _texts(evidence: Evidence) -> dict[str, Texts]:
    """Frames, lines and keys."""
    frames = [(f.where, f"{f.file}:{f.function}: {f.code}") for f in evidence.frames[:MOST_TEXT]]
    lines = [(line.where, line.text) for line in evidence.lines[:MOST_TEXT]]
    lines += [(f.where, f.text) for f in evidence.failures]
    keys = [(where, f"{key}={value}") for where, key, value in evidence.seen_keys[:MOST_TEXT]]
    kinds = {"frame": frames, "line": lines, "key": keys, "any": frames + lines + keys}
    return {kind: Texts(each, "\n".join(text for _, text in each).casefold()) for kind, each in kinds.items()}


_OF_FAILURE = pattern(
    r"\b(request|requested|allocated|free|reserved|refused|fail(s|ed|ure)?|capacity|counters|pools)\b"
)  # sentences about the failure's own text


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


@cache
def _words(text: str) -> Words:
    return needed(text)


def _hit(mark: str, texts: Texts) -> str | None:
    """Where a mark's pattern first matches."""
    words = _words(mark)
    if words and not any(word in texts.folded for word in words):
        return None
    pattern = _pattern(mark)
    return next((where for where, text in texts.each if pattern.search(text)), None)


def _marks(rule: Rule, run: Run, evidence: Evidence, texts: dict[str, Texts]) -> Iterator[Says]:
    for mark in rule.marks:
        found = _look(mark, run, evidence, texts)
        if found is not None:
            where, sentence = found
            yield Says(sentence, where, mark.weight > 0, mark.weight * _sureness(run, mark.rests_on), mark.id, mark.source)


def _sureness(run: Run, fields: Iterable[str]) -> float:
    return UNCERTAIN if any(uncertain(run, path) for path in fields) else 1.0


def _look(mark: Mark, run: Run, evidence: Evidence, texts: dict[str, Texts]) -> tuple[str | None, str] | None:
    if mark.id in evidence.marks:
        return "stated by a link", mark.says
    if mark.pattern is not None:
        hit = _hit(mark.pattern, texts[mark.on])
        if hit is None:
            return None
        if mark.when is None:
            return hit, mark.says
        sentence = mark.when(run, evidence)
        return None if sentence is None else (hit, sentence or mark.says)
    sentence = mark.when(run, evidence) if mark.when else None
    if sentence is None:
        return None
    failure = evidence.failure
    return (failure.where if failure is not None and _OF_FAILURE.search(sentence) else None), sentence or mark.says


def _written(run: Run, evidence: Evidence) -> residual.Fit:
    """How well the run as written explains the counters."""
    figures, failure = counters.of(evidence), evidence.failure
    if failure is None or figures.wanted is None:
        return residual.UNKNOWN
    ledger = ledger_of(run)
    return residual.fit(ledger, figures, failure.phase, residual.relative_error(ledger))


def _numbers(faulted: Run | None, run: Run, evidence: Evidence, rule: Rule, written: residual.Fit, told: float) -> Iterator[Says]:
    """How the counters judge the hypothesis: its fit less the fit of the run as written.

    Where nothing else speaks for it (``told`` below 1), a gain counts for less: several faults can add the same bytes.
    """
    failure, figures = evidence.failure, counters.of(evidence)
    if faulted is None or failure is None or faulted is run or figures.wanted is None:
        return
    ledger, with_fault = ledger_of(run), ledger_of(faulted)
    if with_fault is None:
        return
    after = residual.fit(with_fault, figures, failure.phase, residual.relative_error(ledger))
    gain = after.value - written.value if ledger is not None else min(0.0, after.value)
    if gain > 0 and told < 1:
        gain *= ALONE
    gain *= _sureness(run, (d.field for d in faulted.deviations if d.kind == "ineffective" and d.field and d not in run.deviations))
    if abs(gain) < 0.2:
        return
    sentence = f"as written: {written.says}; with this fault: {after.says}" if ledger is not None else f"with this fault: {after.says}"
    yield Says(sentence, failure.where, gain > 0, gain, f"{rule.id}-numbers", "the estimate's ledger at the failing phase against the printed counters")
