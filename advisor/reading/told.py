"""What people say of a failure whose text they did not paste: that memory ran out, and at which moment.

A sentence counts when it states that it happened. A wish, a question, a condition and a negation do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from advisor.evidence import Failure
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern

LINES = 300  # of a text that are looked at: people write above a log, not in its middle
LONGEST = 2000
_SENTENCE = pattern(r"(?<=[.!?;])\s+(?=[A-Z`\"'(])")
_RAN_OUT = pattern(
    r"\bOOM(?:s|ed|ing|-ing|'?d|-?killed)?\b|(?i:\bout[ -]of[ -](?:GPU |CUDA |V?RAM )?memory\b)|"
    r"\b(?:runs?|ran|running) out of (?:GPU |CUDA )?(?:memory|V?RAM)\b"
)
_WORDS = pattern(r"[A-Za-z]{2,}")
_NOT_STATED = pattern(
    r"\b(?:no|not|never|without|avoid\w*|prevent\w*|instead of|until|if|whether|would|could|might|may|should|will|can|want|trying to|in order to|"
    r"before it|so that|used to|solve[ds]?|fix\w*|handle\w*|isn't|doesn't|didn't|don't|wasn't|n't)\b(?=.*(?:OOM|out[ -]of|ran out|run out))|\?\s*$",
    re.IGNORECASE,
)
_MOMENTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, pattern(text, re.IGNORECASE))
    for phase, text in (
        ("step", r"\boptimi[sz]er\.step\b|\b(?:in|at|during|on|inside) (?:the )?(?:first )?optimi[sz]er(?:'s)? step"),
        ("merge", r"\bmerge_and_unload\b|\b(?:when|while|during|on|after) (?:the )?merging\b"),
        ("save", r"\b(?:when|while|during|at|on|upon) (?:the )?(?:model |checkpoint |final )?saving\b|\bsave_(?:model|checkpoint|pretrained)\b"),
        ("resume", r"\b(?:when|while|during|after|on|upon) resuming\b|\bresume_from_checkpoint\b"),
        (
            "load",
            r"\b(?:when|while|during|at) (?:the )?(?:model |weight )?loading\b|\bloading (?:of )?(?:the |my )?(?:checkpoint|model|weights|shards)\b.{0,60}%",
        ),
        ("sync", r"\b(?:when|while|during|at|on) (?:the )?(?:weight[s ]?(?:sync\w*|update|transfer)|syncing|updating (?:the )?weights)"),
        ("rollout", r"\b(?:when|while|during|at|in) (?:the )?(?:rollouts?|generation|generating|sampling)\b"),
        ("eval", r"\b(?:in|at|during|while|when|for|on) (?:the |my )?(?:evaluat\w+|validati\w+|validating|eval\b|eval(?:uation)? step)"),
        ("backward", r"\b(?:in|at|during|on) (?:the )?(?:loss\.)?backward\b"),
        ("forward", r"\b(?:in|at|during|on) (?:the )?forward\b"),
    )
)


def failure_told(texts: Iterable[Excerpt]) -> Failure | None:
    """The last sentence that states that memory ran out, as a failure without counters."""
    last: Failure | None = None
    for where, sentence in _sentences(texts):
        if states(sentence):
            last = Failure(kind="gpu-memory", where=where, text=sentence[:400], phase=moment(sentence), details=(("told", "in words"),))
    return last


def phase_told(texts: Iterable[Excerpt]) -> tuple[str, str] | None:
    """The moment that the last such sentence names, and the sentence."""
    found = None
    for _, sentence in _sentences(texts):
        if states(sentence) and (phase := moment(sentence)) is not None:
            found = phase, sentence
    return found


def states(sentence: str) -> bool:
    """Whether it says that memory ran out."""
    return _RAN_OUT.search(sentence) is not None and _NOT_STATED.search(sentence) is None


def moment(sentence: str) -> str | None:
    """The phase that a sentence names; where it names two, none."""
    found = [phase for phase, named in _MOMENTS if named.search(sentence)]
    return found[0] if len(found) == 1 else None


def _sentences(texts: Iterable[Excerpt]) -> Iterator[tuple[str, str]]:
    for text in texts:
        for line in text.lines[:LINES]:
            if not 20 <= len(line.text) <= LONGEST or "ried to allocate" in line.text:
                continue
            for sentence in _SENTENCE.split(line.text.strip("#>*- ")):
                if len(_WORDS.findall(sentence)) >= 6:
                    yield text.where(line), sentence
