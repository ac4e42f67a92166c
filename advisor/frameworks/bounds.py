"""What is known of a version that nobody wrote: at least this one, or older than that one.

A default belongs to a range of versions; it holds, does not hold, or stays open against a bound. Only plain comparisons are compared
(``>=4.36,<5``); anything else stays open.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

Bounds = tuple[tuple[str, str], ...]  # package, specifier: (("transformers", ">=4.46,<5"),)
Place = tuple[Version, int]  # just before a version (0) or just behind it (1)
_LOWEST, _HIGHEST = (Version("0"), 0), (Version("9999"), 0)
_PLACES = {">=": 0, ">": 1, "<": 0, "<=": 1}


class Range(Struct, frozen=True):
    """Versions from one place to another: ``>4.36`` begins just behind 4.36, ``>=4.36`` just before it."""

    low: Place
    high: Place


def holds(bound: str, wanted: str) -> bool | None:
    """Whether every version within a bound is one of those wanted; ``False`` where none is, ``None`` where some are."""
    known, asked = range_of(bound), range_of(wanted)
    if known is None or asked is None:
        return None
    if known.high <= asked.low or known.low >= asked.high:
        return False
    return True if asked.low <= known.low and known.high <= asked.high else None


@cache
def range_of(specifier: str) -> Range | None:
    """The range of a specifier of ``>=``, ``<`` and their like; ``None`` for any other, and where no version is left."""
    low, high = _LOWEST, _HIGHEST
    try:
        parts = [(part.operator, Version(part.version)) for part in SpecifierSet(specifier)]
    except (InvalidSpecifier, InvalidVersion):
        return None
    for operator, version in parts:
        if operator not in _PLACES:
            return None
        place = (version, _PLACES[operator])
        if operator.startswith(">"):
            low = max(low, place)
        else:
            high = min(high, place)
    return Range(low, high) if low < high else None  # two runs in one text: nothing is known of either
