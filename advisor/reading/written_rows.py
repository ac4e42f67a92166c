"""A row of figures in one sentence: "step 100 30.1GB, step 200 30.9, step 300 31.8", "epoch 1: 8.1 GB, epoch 2: 9.4 GB".

Whoever writes so looked at the memory and saw it move. Which counter it was is not said, so it counts as what the card shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from advisor.evidence import Sample
from advisor.reading.figures import bytes_of
from advisor.reading.pattern import pattern as lazily

LEAST = 3  # figures of a row
_UNIT = lazily(r"\d\s?(GiB|GB|MiB|MB|G|M)\b(?!/s)", re.IGNORECASE)
_PAIR = lazily(
    r"\b(step|epoch|iter(?:ation)?|batch|trial|fold|run)s? ?#?(\d{1,8})\b\W{0,4}"
    r"(?:(?:is|was|at|uses?|used|memory|mem|vram|gpu|allocated|reserved|peak)\b\W{0,3}){0,3}"
    r"(\d{1,7}(?:\.\d{1,4})?)(?![\d.]*\s?(?:%|s\b|ms\b|it/s|sec|min|k\b|tok))\s?(GiB|GB|MiB|MB|G|M)?\b",
    re.IGNORECASE,
)


def of_line(content: str, where: str, rank: int | None) -> Iterator[Sample]:
    """One sample a figure; none where fewer than three stand in a row, no unit is given, or the counts are not in order."""
    unit = _UNIT.search(content)
    if unit is None:
        return
    found = list(_PAIR.finditer(content))[:64]
    counts = [int(m[2]) for m in found]
    if len(found) < LEAST or len({m[1].lower() for m in found}) > 1 or any(b <= a for a, b in pairwise(counts)):
        return
    for m in found:
        if (value := bytes_of(m[3], m[4] or unit[1])) is not None:
            yield Sample(where, f"{m[1].lower()}, as it is written", int(m[2]), rank, device_used_bytes=value)
