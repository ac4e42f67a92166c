"""The banner that a trainer prints before each of its loops: ``***** Running Evaluation *****`` and the settings of that loop below it.

Source: transformers 5.x ``trainer.py`` _inner_training_loop ("Running training") and evaluation_loop ("Running Evaluation", "Running Prediction",
both with "Batch size"), and the scripts of its examples. The same words mean another loop's setting under another heading.
"""

from __future__ import annotations

from typing import Literal

from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern as lazily

_HEADING = lazily(r"\*{3,}\s*Running (\w+)")
_SETTING = lazily(r"(?:^|>>|-)\s*[A-Z]\w[\w .,/()&-]{0,90}[=:]\s*\S")
_ENDS = lazily(r"^\s*$|\b\w*(?:Error|Exception)\b|Traceback \(most recent")  # what follows is no banner's
_BETWEEN = 3  # lines of others within a banner: a progress bar, another rank

Loop = Literal["training", "evaluation"]


def loops_of(text: Excerpt) -> dict[int, Loop]:
    """The number of each line that stands in a banner, with the loop that the banner is of."""
    found: dict[int, Loop] = {}
    loop: Loop | None = None
    others = 0
    for line in text.lines:
        if "***" in line.text and (heading := _HEADING.search(line.text)) is not None:
            loop, others = "training" if heading[1].lower().startswith("train") else "evaluation", 0
            found[line.number] = loop
        elif loop is not None and _ENDS.search(line.text) is not None:
            loop = None
        elif loop is not None and _SETTING.search(line.text) is not None and len(line.text) < 200:
            found[line.number] = loop
        elif loop is not None:
            others += 1
            loop = loop if others <= _BETWEEN else None
    return found
