"""Answers of a Python console: a prompt with an expression, and the number on the line below."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB

_PROMPT = pattern(r"^\s*(?:>>>|In ?\[\d*\]:)\s*(.+)$")
_NUMBER = pattern(r"^\s*(?:Out ?\[\d*\]:\s*)?(\d{1,15}(?:\.\d+)?)\s*$")
_SCALED = pattern(r"/\s*(2\s*\*\*\s*30|1024\s*\*\*\s*3|1e9|GiB|\(1 ?<< ?30\))")


def answers(evidence: Evidence) -> Iterator[tuple[str, float, str]]:
    """(expression, number, where) of every answer that is a number."""
    for line, below in pairwise(evidence.lines):
        prompt, number = _PROMPT.match(line.text), _NUMBER.match(below.text)
        if prompt is not None and number is not None:
            yield prompt.group(1), float(number.group(1)), below.where


def sizes(evidence: Evidence) -> Iterator[tuple[str, int, str]]:
    """(expression, bytes, where) for expressions about memory: divided by 2**30 they are GiB, else bytes."""
    for expression, value, where in answers(evidence):
        yield expression, round(value * GIB) if _SCALED.search(expression) or value < 10_000 else round(value), where
