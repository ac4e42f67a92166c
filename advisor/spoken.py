"""``an H100``, ``a V100``: the indefinite article before a name that a sentence takes in, by how the name is spoken."""

from __future__ import annotations

import re

_SPELLED = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z]{1,3}(?=\d)")  # RTX, MI300X, h100: letter by letter; Radeon, Gaudi2: a word
_VOWELS_OF_LETTERS = frozenset("AEFHILMNORSX")  # as the letters' own names begin: ay, ee, ef, aitch, ...
_VOWELS_OF_WORDS = frozenset("aeiou")
_NUMBERS = re.compile(r"8|(?:11|18)(?!\d)")  # eight, eighty, eight hundred; eleven, eighteen


def with_article(name: str) -> str:
    """``name`` with ``a`` or ``an`` before it: an A100 SXM4 80 GB, a T4, an RTX 3090, a Radeon RX 7900 XT."""
    spelled = _SPELLED.match(name)
    if spelled is not None:
        vowel = spelled[0][0].upper() in _VOWELS_OF_LETTERS
    else:
        vowel = name[:1].lower() in _VOWELS_OF_WORDS or _NUMBERS.match(name) is not None
    return f"{'an' if vowel else 'a'} {name}"
