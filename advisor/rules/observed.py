"""What a reporter saw and says in words: memory grows, a switch changes nothing, the first card fills. Weaker than a log, and often all there is.

An observation is put in many words, so each expression takes the usual verbs and nouns in either order. A question or a condition is none.
"""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern

_MEMORY = r"(?:memory|VRAM|RAM|footprint)"
_UP = r"(?:increas\w+|grow\w*|ris(?:es|ing|e)|climb\w*|accumulat\w+|build\w* up|creep\w*|go(?:es|ing)? up|leak\w*)"
_TIME = r"(?:batch|step|iteration|epoch|evaluation|validation|call|loop)\w*"
_EACH = rf"(?:(?:each|every|per|successive|more) (?:\w+ ){{0,2}}{_TIME}|step by step|over time|steadily|gradually|continu\w+)"
_EVALUATION = pattern(r"\b(?:validat|evaluat|eval\b|test(?:ing)?\b|inference|predict)", re.IGNORECASE)
_GROWS = pattern(
    rf"\b{_MEMORY}\b[^.?!]{{0,80}}\b{_UP}\b[^.?!]{{0,80}}\b{_EACH}\b|"
    rf"\b{_EACH}\b[^.?!]{{0,60}}\b{_MEMORY}\b[^.?!]{{0,60}}\b{_UP}\b|"
    rf"\b{_MEMORY}\b[^.?!]{{0,40}}\b{_EACH}\b[^.?!]{{0,10}}\b{_UP}\b",
    re.IGNORECASE,
)
_CHECKPOINTING = r"(?:(?:activation|gradient) )?(?:checkpointing|recomput\w+)"
_CHANGES_NOT = r"(?:makes? no difference|has no effect|saves? no|(?:doesn't|does not|didn't|did not) (?:\w+ )?(?:reduce|save|lower|change|help))"
_NO_DIFFERENCE = pattern(
    rf"\b(?:same|identical|unchanged|equal)\b[^.?!]{{0,60}}\bwith(?: and without|out and with| or without)\b[^.?!]{{0,30}}\b{_CHECKPOINTING}|"
    rf"\b{_CHECKPOINTING}\b[^.?!]{{0,60}}\b{_CHANGES_NOT}",
    re.IGNORECASE,
)
_FIRST = r"(?:GPU|card|device|cuda)[ :]?0\b"
_PROCESSES = r"(?:each|every|all|both)\b[^.?!]{0,20}\b(?:scripts?|process\w*|ranks?|workers?|jobs?)\b"
_HOLDS = r"(?:occup\w+|used?|uses|fill\w*|memory)\b"
_FIRST_CARD = pattern(
    rf"\b{_FIRST}[^.?!]{{0,60}}\b{_HOLDS}[^.?!]{{0,60}}\b{_PROCESSES}|\b{_PROCESSES}[^.?!]{{0,40}}\b{_HOLDS}[^.?!]{{0,30}}\b{_FIRST}",
    re.IGNORECASE,
)
_RUN = r"(?:scripts?|configs?|configurations?|commands?|setups?|code|runs?|settings|jobs?)"
_WORKED = pattern(
    rf"\b(?:same|this|identical) {_RUN}\b[^.?!]{{0,60}}\b(?:work(?:ed|s)?|ran|fit|was fine)\b[^.?!]{{0,60}}\b"
    r"(?:before|older|previous\w*|earlier|version|last)\b|"
    rf"\b(?:used to (?:work|run|fit)|worked (?:fine |well )?(?:before|until|with (?:the )?(?:older|previous|earlier)))\b",
    re.IGNORECASE,
)
LONGEST = 1500


def _first(evidence: Evidence, seen: re.Pattern[str]) -> tuple[str, str] | None:
    for line in evidence.lines:
        if 20 <= len(line.text) <= LONGEST and (found := seen.search(line.text)) is not None:
            end = line.text.find("?", found.end())
            if end < 0 or "." in line.text[found.end() : end]:
                return line.where, line.text
    return None


def grows(evidence: Evidence) -> str | None:
    """Memory grows from step to step, as the reporter says, in training."""
    found = _first(evidence, _GROWS)
    return None if found is None or _EVALUATION.search(found[1]) else f"memory grows from step to step, as is written in {found[0]}"


def grows_in_evaluation(evidence: Evidence) -> str | None:
    """The same of evaluation batches."""
    found = _first(evidence, _GROWS)
    return f"memory grows from one evaluation batch to the next, as is written in {found[0]}" if found is not None and _EVALUATION.search(found[1]) else None


def checkpointing_changes_nothing(evidence: Evidence) -> str | None:
    """The peak is the same with and without checkpointing."""
    found = _first(evidence, _NO_DIFFERENCE)
    return f"checkpointing changes nothing, as is written in {found[0]}" if found is not None else None


def worked_before(evidence: Evidence) -> str | None:
    """The same run went through with an earlier version: what it holds did not become larger by itself."""
    found = _first(evidence, _WORKED)
    return f"the same run went through before, as is written in {found[0]}" if found is not None else None


def first_card_fills(evidence: Evidence) -> str | None:
    """Every process holds memory on the first card, whichever it was given."""
    found = _first(evidence, _FIRST_CARD)
    return f"every process holds memory on the first card, as is written in {found[0]}" if found is not None else None
