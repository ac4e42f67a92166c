"""Tries of one switch in a log: commands or settings one below the other, with the figures that each printed under it.

``tried`` reads sentences, where figure and switch stand in one clause. A log has them apart: a line names the setting of the run
that follows (``enable_gradient_checkpointing=False``, ``--model.converters float8``), and figures come beside it or below. What a
try took is the largest figure before the next try begins.
"""

from __future__ import annotations

import re

from msgspec import Struct

from advisor.evidence import Evidence, Line
from advisor.reading.pattern import pattern
from advisor.rules.tried import LONGEST, MOST, Pair, Try
from advisor.units import GIB, MIB

_SETTING = pattern(
    r"(?:--)?([A-Za-z_][\w.-]{1,80})\s?[=:]\s?(\[[^\]\n]{0,80}\]|['\"]?[\w./-]{1,60}['\"]?)|(?<!\S)--([A-Za-z_][\w.-]{1,80})(?:\s+(?!-)([\w./-]{1,60}))?"
)
_OFF = frozenset({"false", "0", "none", "off", "no", "[]", "null", ""})
_AFTER = pattern(r"(?<![\w.])(?<!of )(?<!/ )(\d{1,6}(?:\.\d{1,3})?)\s?(GiB|GB|MiB|MB)(?![\w/])", re.IGNORECASE)
_BEFORE = pattern(r"\((GiB|GB|MiB|MB)\)\W{1,3}(\d{1,6}(?:\.\d{1,3})?)(?![\w.])", re.IGNORECASE)  # verl log_gpu_memory_usage: "memory allocated (GB): 61.7"
_NO_FIGURE = pattern(r"ried to allocate|\bcapacity\b|\bH\d00 \d|Max memory:|\b(?:GPU|card)s?\b\s?\d", re.IGNORECASE)
_COMMAND = pattern(r"^\s*(?:[>$#]\s*)?\S[^\n]{0,200}\s--[\w.-]+")
_WITHOUT = pattern(r"^\W{0,6}(?:without|w/o|no|baseline)\b", re.IGNORECASE)
SMALLEST = GIB  # a figure below is no peak of a training run that is compared


class _Named(Struct, frozen=True):
    """What a line says of the switch: on, off, and the other settings that it names."""

    on: bool
    key: str
    others: dict[str, str]


def pair(evidence: Evidence, keys: str, values: str = "") -> Pair | None:
    """The first two tries of a switch that agree in every other setting named beside it.

    ``keys``: what the last part of a key that is the switch matches whole. ``values``: what a value that turns it on contains, under whatever key.
    """
    key, value = re.compile(rf"^(?:{keys})$", re.IGNORECASE), re.compile(values, re.IGNORECASE) if values else None
    lines = [line for line in evidence.lines[:MOST] if len(line.text) <= LONGEST]
    by_value = frozenset(n for line in lines for n, v in _settings(line.text).items() if value is not None and value.search(v))
    found: list[tuple[_Named, Try]] = []
    named: _Named | None = None
    best: Try | None = None
    source = ""
    for line in lines:
        of = line.where.rpartition(":")[0]
        starts = _starts(line, key, value, by_value)
        if starts is not None or of != source:
            if named is not None and best is not None:
                found.append((named, best))
            named, best, source = starts, None, of
        size = _largest(line)
        if named is not None and size is not None and (best is None or size > (best.memory or 0)):
            best = Try(line.where, size, None)
    if named is not None and best is not None:
        found.append((named, best))
    for here, on in found:
        for there, off in found:
            if here.on and not there.on and here.key == there.key and _agree(here.others, there.others):
                return Pair(on, off)
    return None


def _settings(text: str) -> dict[str, str]:
    return {(m[1] or m[3]): (m[2] if m[1] else (m[4] or "true")).strip("'\"") for m in _SETTING.finditer(text)}


def _starts(line: Line, key: re.Pattern[str], value: re.Pattern[str] | None, by_value: frozenset[str]) -> _Named | None:
    """What a line says of the switch; ``None``: it is of the try above."""
    settings = _settings(line.text)
    for name, given in settings.items():
        if name in by_value and value is not None and not _WITHOUT.search(line.text):
            return _Named(value.search(given) is not None, name, {k: v for k, v in settings.items() if k != name and not value.search(k)})
    for name, given in settings.items():
        if key.match(re.split(r"[.\-]+", name)[-1]) or key.match(name.replace("-", "_")):
            return _Named(given.lower() not in _OFF, name, {k: v for k, v in settings.items() if k != name})
    for name in by_value:  # a command beside others that has no such option, or a heading that leaves it out
        if value is not None and not value.search(line.text) and name not in line.text and _COMMAND.search(line.text):
            return _Named(False, name, settings)
        if _WITHOUT.search(line.text) and (name in line.text or (value is not None and value.search(line.text))):
            return _Named(False, name, {})
    return None


def _agree(a: dict[str, str], b: dict[str, str]) -> bool:
    return all(b[key] == value for key, value in a.items() if key in b and not _AFTER.search(value) and key.lower() not in ("step", "loss", "tps", "memory"))


def _largest(line: Line) -> int | None:
    if _NO_FIGURE.search(line.text):
        return None
    sizes = [(float(m[1]), m[2]) for m in _AFTER.finditer(line.text)] + [(float(m[2]), m[1]) for m in _BEFORE.finditer(line.text)]
    most = max((round(number * (GIB if unit[0] in "Gg" else MIB)) for number, unit in sizes), default=0)
    return most if most >= SMALLEST else None
