"""How a job is divided, as people write it: "TP=2, PP=4, VP=5", "TP2 / EP8 / CP1", "tensor parallel size 4", "16 nodes x 4 GPUs".

The abbreviations are Megatron-LM's and torchtitan's. One of them with a bare number behind it may be anything (a chapter, a product); two beside each
other, or one with a sign of equality, are a layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from advisor.reading.pattern import pattern as lazily

FIELDS = {
    "TP": "parallel.tensor", "PP": "parallel.pipeline", "CP": "parallel.context", "EP": "parallel.expert", "ETP": "parallel.expert_tensor",
    "VP": "parallel.virtual_stages", "VPP": "parallel.virtual_stages",
}  # fmt: skip
_SHORT = lazily(r"(?<![A-Za-z0-9_./-])(ETP|TP|PP|CP|EP|VPP|VP)(?:[ _-]?(?:size|degree))?(\s?[=:]\s?|[ -]?)(\d{1,4})(?![\w.]*\d|[A-Za-z%/])")
_CARDS = lazily(r"\b\d{1,5} ?(?:x|×)? ?(?:GPUs?|cards|[AHBL]\d{2,3}s?|GB?[23]00s?|MI\d{3}\w?)\b|\b(?:megatron|nemo|dropless)\b", re.IGNORECASE)
_OTHER = lazily(r"\b(?:FP|FN|TN|loss|epochs?)\b", re.IGNORECASE)  # true positives and the epoch of a progress line have the same letters
_LONG = lazily(
    r"(?<![\w-])(tensor|pipeline|context|expert)[ _-](?:model[ _-])?parallel(?:ism)?(?:[ _-](?:size|degree|world size))?"
    r"\s{0,2}(?:=|:|of|is|\()?\s{0,2}(\d{1,4})(?![\w.]*\d|[A-Za-z%])",
    re.IGNORECASE,
)
_NODES = lazily(
    r"(?<![\w.])(\d{1,4}) ?nodes? ?(?:[x×*]|with|of|,)? ?(?:each )?(?:with |of |having )?"
    r"(\d{1,3}) ?(?:[x×*] ?)?(?:[\w-]+ ){0,2}(?:GPUs?|cards)\b",
    re.IGNORECASE,
)
_WORD = lazily(r"[A-Za-z]{2,}|\n")
MOST = 65_536
WIDEST_NODE = 8  # cards of a usual node: more than that beside several nodes is the whole job


def layout(text: str) -> Iterator[tuple[str, int]]:
    """Degrees of parallelism that a line states."""
    short = list(_SHORT.finditer(text))[:12]
    beside = {m.start() for pair in pairwise(short) if pair[0][1] != pair[1][1] and not _WORD.search(text[pair[0].end() : pair[1].start()]) for m in pair}
    alone = bool(short) and _CARDS.search(text) is not None and _OTHER.search(text) is None  # one degree alone is meant as one where the line counts cards
    for m in short:
        if ("=" in m[2] or alone or m.start() in beside) and 1 <= int(m[3]) <= MOST:
            yield FIELDS[m[1]], int(m[3])
    for m in list(_LONG.finditer(text))[:6]:
        if 1 <= int(m[2]) <= MOST:
            yield f"parallel.{m[1].lower()}", int(m[2])


def nodes(text: str) -> tuple[int, int] | None:
    """``(nodes, cards of each)`` where a line states both."""
    m = _NODES.search(text)
    return (int(m[1]), int(m[2])) if m is not None and 1 <= int(m[2]) <= 128 and int(m[1]) >= 1 else None


def of_each(count: int, of_nodes: int) -> int:
    """Cards of one node: "16x H100 (2 nodes)" counts them all, "8x H100, 2 nodes" those of each."""
    return count // of_nodes if of_nodes > 1 and count > WIDEST_NODE and count % of_nodes == 0 else count
