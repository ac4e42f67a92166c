"""What a reporter says of one rank among several: it alone fails, it alone holds more. And what that points to."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern

LONGEST = 600  # characters of a line that is looked at
_FAILS = r"(?:OOMs?|out[ -]of[ -]memory|fails?|failed|dies|crashe[sd]|runs? out)"
_ONE = r"(?:rank|gpu|card|device|cuda)[ :#]?(\d{1,4})"
_ALONE = pattern(
    rf"\b{_FAILS}\b[^.?!]{{0,40}}\b(?:only )?on {_ONE} (?:only|alone)\b(?! (?:when|if|after|because|once))|"
    rf"\b{_FAILS}\b[^.?!]{{0,40}}\bonly (?:on|in|for) {_ONE}\b|"
    rf"\b(?:only )?{_ONE}\b[^.?!]{{0,30}}\b{_FAILS}\b[^.?!]{{0,60}}\b(?:others?|rest|remaining)\b[^.?!]{{0,30}}\b(?:fine|ok(?:ay)?|less|free|not|never)\b|"
    rf"\b{_ONE}\b[^.?!]{{0,30}}\b(?:holds?|uses?|has|takes?)\b[^.?!]{{0,20}}\bmore\b[^.?!]{{0,30}}\b(?:others?|rest|other (?:ranks|gpus|cards))\b",
    re.IGNORECASE,
)
_SOME = pattern(  # "one rank OOMs, always a different one; the others have 15 GB free"
    rf"\b(?:one|a single|a different|some) (?:rank|gpu|card|worker)\b[^.?!]{{0,30}}\b{_FAILS}\b[^.?!]{{0,60}}\b(?:others?|rest|different)\b", re.IGNORECASE
)
_FIRST = r"(?:the )?first (?:gpu|card|device|one|of them)"
_FIRST_MORE = pattern(
    rf"\bmore (?:\w+ )?memory (?:on|in|for) {_FIRST}\b[^.?!]{{0,20}}\bthan\b|"
    rf"\b{_FIRST} (?:\w+ )?(?:holds?|uses?|has|takes?|needs?)\b[^.?!]{{0,20}}\bmore\b[^.?!]{{0,20}}\bthan\b[^.?!]{{0,12}}\b(?:others?|rest)\b",
    re.IGNORECASE,
)
_EXPERTS = pattern(r"\b(?:mixture[ -]of[ -]experts|MoE|experts?|router|grouped[ _]?gemm|token[ _]dispatch\w*)\b", re.IGNORECASE)


def alone(evidence: Evidence) -> tuple[int, str] | None:
    """The rank or card that fails, or holds more, alone among several, and where that is written."""
    for line in evidence.lines:
        if 15 <= len(line.text) <= LONGEST and (found := _ALONE.search(line.text)) is not None and not line.text.rstrip().endswith("?"):
            return int(next(group for group in found.groups() if group is not None)), line.where
    return None


def first_alone(evidence: Evidence) -> str | None:
    """The first card or rank alone: what every process does before it chose a device happens there."""
    found = alone(evidence)
    if found is not None and found[0] == 0:
        return f"rank 0 or the first card alone fails or holds more, as is written in {found[1]}"
    for line in evidence.lines:
        if 15 <= len(line.text) <= LONGEST and _FIRST_MORE.search(line.text) and not line.text.rstrip().endswith("?"):
            return f"the first card holds more than the others, as is written in {line.where}"
    return None


def one_of_experts(evidence: Evidence) -> str | None:
    """One rank other than the first, where the text speaks of experts: ranks that hold experts differ by the tokens that the router sends."""
    found = alone(evidence)
    if not any(_EXPERTS.search(line.text) for line in evidence.lines):
        return None
    if found is None:
        some = next((line for line in evidence.lines if 15 <= len(line.text) <= LONGEST and _SOME.search(line.text)), None)
        return f"one rank among others fails, in a model with experts, as is written in {some.where}" if some is not None else None
    if found[0] == 0:
        return None
    return f"rank {found[0]} alone fails or holds more, in a model with experts, as is written in {found[1]}"
