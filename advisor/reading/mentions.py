"""Sentences that speak of running out of memory without saying that it happened: hearsay, advice, a negation."""

from __future__ import annotations

import re

from advisor.evidence import Failure
from advisor.reading import told
from advisor.reading.pattern import pattern
from advisor.reading.tracebacks import exception_of

_OUT = r"(?:out[ -]of[ -]memory|\boom)"
_MENTION = pattern(_OUT, re.IGNORECASE)
_HEARSAY = pattern(
    r"\b(?:read|heard|know|knew|saw|suggest\w*|recommend\w*|advice|advise\w*|people|others|someone|usually|often|sometimes|normally|docs?|documentation|"
    rf"faq|guides?|tutorials?|posts?|threads?|answers?|google\w*|search\w*|similar|typical\w*|unlike|related|"
    rf"about(?!\s+(?:\d|half|an? (?:hour|day|epoch)))|means?)\b[^.!?]{{0,80}}?{_OUT}",
    re.IGNORECASE,
)
_REMEDY = pattern(rf"{_OUT}[^.!?]{{0,20}}\s(?:can|could|may|might|should|must)\s+be\b", re.IGNORECASE)
_OWN = pattern(
    r"\b(?:I|we|run|it|training|script|job)\s+(?:(?:now|then|still|always|just|again)\s+)?"
    r"(?:got|gets?|hits?|sees?|runs? into|ran into|ran out|runs out|throws?|threw|fail\w*|dies|died|crashe[sd]|OOMs|OOMed)\b|\band then OOMs\b",
    re.IGNORECASE,
)
_LEAST = 6  # words of a sentence; fewer are a message


def only_mentioned(failure: Failure) -> bool:
    """Whether prose, no message of a program, speaks of it, and none of its sentences states that it happened."""
    numbers = (failure.requested_bytes, failure.capacity_bytes, failure.allocated_bytes)
    if failure.kind != "gpu-memory" or failure.frames or any(n is not None for n in numbers) or exception_of(failure.text) is not None:
        return False
    spoken = [sentence for sentence in told.sentences(failure.text) if _MENTION.search(sentence)]
    return bool(spoken) and all(len(sentence.split()) >= _LEAST and not stated(sentence) for sentence in spoken)


def stated(sentence: str) -> bool:
    """Whether the sentence says that it happened, and to the one who writes."""
    if not told.states(sentence):
        return False
    return _OWN.search(sentence) is not None or not (_HEARSAY.search(sentence) or _REMEDY.search(sentence))
