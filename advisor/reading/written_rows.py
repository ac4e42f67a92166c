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
    """One sample a figure; none where fewer than three stand in a row, none of them has a unit, or the counts are not in order."""
    if _UNIT.search(content) is None:
        return
    found = list(_PAIR.finditer(content))[:64]
    counts = [int(m[2]) for m in found]
    if len(found) < LEAST or len({m[1].lower() for m in found}) > 1 or any(b <= a for a, b in pairwise(counts)):
        return
    first = next((m[4] for m in found if m[4]), None)
    if first is None:
        return  # "epoch 1 90, epoch 2 91 on a 24 GB card": whose unit it is, nobody says
    if found[0][1].lower() == "batch" and all(b == 2 * a for a, b in pairwise(counts)):
        return  # "batch 8 12 GB, batch 16 20 GB": sizes that were tried, no steps
    for m in found:
        if (value := bytes_of(m[3], m[4] or first)) is not None:
            yield Sample(where, f"{m[1].lower()}, as it is written", int(m[2]), rank, device_used_bytes=value)
