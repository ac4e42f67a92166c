"""Known models as people speak of them: "llama 3 8b", "Mistral 7B", "Qwen 2.5 VL 7B", "gpt2 xl".

A name is the row of its words and numbers, whatever stands between them; the names are those of ``knowledge/models``, no others, so that a
size or a version that no known model has stays unknown.
"""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.architecture import presets
from advisor.reading.spoken_cards import OF_OTHERS

_TOKEN = re.compile(r"[A-Za-z]+|\d+(?:\.\d+)?")
_NUMBER_OR_SIZE = re.compile(r"\d|[ -](?:base|large)")
_BETWEEN = frozenset(("", " ", "-", "_"))
_SIZES = frozenset(("b", "m", "mini", "small", "medium", "large", "xl", "xxl", "base", "nemo", "scout", "maverick", "air", "lite", "moe"))
_LONGEST = 16  # tokens of a name
_MOST = 400  # tokens of a text that are looked at
# a model with another part in the run than the one that is trained: "teacher: X", "the draft model is X", "X as the judge"
_PART = r"(?:teacher|judge|drafter|draft|verifier|retriever|embedder|grader)"
_PART_BEFORE = re.compile(rf"\b{_PART}(?:[ _-]model)?(?:'s)?\s?(?:is|was|=|:|\(|uses?|->)?\s?(?:a |an |the |frozen ){{0,2}}[\"'`]?$", re.IGNORECASE)
_PART_BEHIND = re.compile(
    rf"^[\w.-]{{0,40}}[\"'`]?,? ?(?:\(|(?:(?:is |was )?(?:used |kept |loaded )?(?:as|for)|is|was|being)\b)\s?(?:a |an |the |our |my |frozen ){{0,2}}{_PART}\b",
    re.IGNORECASE,
)
Key = tuple[str, ...]


def another_part(text: str, start: int, end: int) -> bool:
    """Whether the model named at ``text[start:end]`` is said to be a teacher, a judge or a draft: resident, not trained."""
    return _PART_BEFORE.search(text[max(0, start - 60) : start]) is not None or _PART_BEHIND.match(text[end : end + 80]) is not None


def _key(name: str) -> Key:
    return tuple(token.lower() for token in _TOKEN.findall(name))


@lru_cache(maxsize=1)
def _known() -> dict[str, dict[Key, str]]:
    """First word of a name → names that begin so → hub id. A name needs a number or a size: ``command r`` and ``falcon`` are words too."""
    names: dict[str, dict[Key, str]] = {}
    for name, stem in presets.index().items():
        key = _key(name.rpartition("/")[2])
        if len(key) >= 2 and key[0].isalpha() and any(part[0].isdigit() or part in _SIZES for part in key):
            names.setdefault(key[0], {}).setdefault(key, stem.replace("__", "/", 1))
    return names


def model_spoken_of(text: str) -> str | None:
    """The hub id of the first known model that the text names in words; the longest name that fits there. ``None`` where none is named."""
    if _NUMBER_OR_SIZE.search(text) is None:
        return None
    tokens = list(_TOKEN.finditer(text))[:_MOST]
    for start, first in enumerate(tokens):
        known = _known().get(first[0].lower())
        if (
            known is not None
            and _begins(text, first.start())
            and not OF_OTHERS.search(text[: first.start()][-80:])
            and (found := _longest(text, tokens[start : start + _LONGEST], known)) is not None
            and not another_part(text, first.start(), found[1])
        ):
            return found[0]
    return None


def _longest(text: str, tokens: list[re.Match[str]], known: dict[Key, str]) -> tuple[str, int] | None:
    parts: list[str] = []
    found: tuple[str, int] | None = None
    end = 0
    for at, token in enumerate(tokens):
        if at and text[tokens[at - 1].end() : token.start()] not in _BETWEEN:
            break
        parts.append(token[0].lower())
        hub_id = known.get(tuple(parts))
        if hub_id is not None:
            found, end = (hub_id, token.end()) if _ends(text, token.end()) else None, at
        elif at == end + 1 and parts[-1] in _SIZES and _ends(text, token.end()):
            found = None  # another size of the same family: "gpt2 mini" is not GPT-2
    return found


def _begins(text: str, at: int) -> bool:
    return at == 0 or not ((text[at - 1].isascii() and text[at - 1].isalnum()) or text[at - 1] in "_./:-@\\")


def _ends(text: str, at: int) -> bool:
    """Whether a name may end here: not within a word, a number, a path, a file's name or a longer name."""
    after = text[at : at + 2]
    return not after or not (after[0].isalnum() or after[0] in "_/\\@" or (after[0] in "-.:=" and after[1:].isalnum()))
