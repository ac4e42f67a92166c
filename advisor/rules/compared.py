"""Figures that stand beside two values of one setting: with and without a call, one micro batch and several.

A person who has tried both prints the setting on each line. What differs between the lines is then what the setting does, whatever the
rest of the run takes.
"""

from __future__ import annotations

import re

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB, MIB, show

_SIZE = pattern(r"(?<![\w.])(\d{1,7}(?:\.\d{1,3})?)\s?(GiB|GB|MiB|MB)\b", re.IGNORECASE)
_SHARE = pattern(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3})?)\s?%")
_WITHOUT = r"(?:without|w/o|no|not|skip\w*|omit\w*|disabl\w*|remov\w*)\b[^\n]{0,30}"
_MEMORY = pattern(r"mem|vram|alloc|reserved", re.IGNORECASE)


class Figure(Struct, frozen=True):
    """A size in bytes, or a share of the card in percent, and where it stands."""

    value: float
    unit: str
    where: str

    @property
    def says(self) -> str:
        """The figure in words."""
        return show(round(self.value)) if self.unit == "bytes" else f"{self.value:g} %"


def _figure(text: str, where: str) -> Figure | None:
    """The one figure of a line; ``None`` where it has none or several."""
    sizes = _SIZE.findall(text)
    if len(sizes) == 1:
        return Figure(float(sizes[0][0]) * (GIB if sizes[0][1][0] in "Gg" else MIB), "bytes", where)
    shares = _SHARE.findall(text) if _MEMORY.search(text) and not sizes else []
    return Figure(float(shares[0]), "percent", where) if len(shares) == 1 and float(shares[0]) <= 100 else None


def with_and_without(evidence: Evidence, call: str) -> tuple[Figure, Figure] | None:
    """The figure of the line that names a call, and of the line that says that it was left out."""
    named, left = re.compile(rf"\b{call}\b"), re.compile(_WITHOUT + rf"\b{call}\b", re.IGNORECASE)
    found: dict[bool, Figure] = {}
    for line in evidence.lines:
        if named.search(line.text) and (figure := _figure(named.sub("", line.text), line.where)) is not None:
            found.setdefault(left.search(line.text) is None, figure)
    return (found[True], found[False]) if len(found) == 2 and found[True].unit == found[False].unit else None


def by_value(evidence: Evidence, setting: str) -> list[tuple[int, Figure]]:
    """The figures of lines that name a setting with a whole number, by that number; the first of each."""
    named = re.compile(rf"(?<![A-Za-z]){setting}['\"]?\s{{0,2}}[=: ]\s{{0,2}}(\d{{1,6}})\b", re.IGNORECASE)
    found: dict[int, Figure] = {}
    for line in evidence.lines:
        if (m := named.search(line.text)) is not None and (figure := _figure(named.sub("", line.text), line.where)) is not None:
            found.setdefault(int(m[1]), figure)
    units = {figure.unit for figure in found.values()}
    return sorted(found.items(), key=lambda pair: pair[0]) if len(units) == 1 else []
