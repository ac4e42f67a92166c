"""Figures of a log that only the script beside it explains: ``print(f"after ddp {torch.cuda.memory_reserved()/(1024**2)}")`` and ``after ddp 324.0``.

The label is the literal text before the call, the unit its divisor. Nothing is run: the statement is matched, the divisor is one of the usual ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from advisor.evidence import Sample
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern as lazily
from advisor.units import GIB, KIB, MIB

MOST = 40  # labels that are looked for
_PRINTS = lazily(
    r"\b(?:print|info|debug|warning|log|write)\(\s*(?:f|rf)?[\"']([^{}\"'\n]{2,60}?)(?:\{|[\"'],\s*)"
    r"torch\.(?:cuda|xpu|npu|mps|accelerator)\.(max_)?memory_(allocated|reserved|cached)\([^()\n]{0,40}\)\s*(?:/{1,2}\s*([^}:,\n]{1,40}))?"
)
_DIVISORS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"1024\*\*3|2\*\*30|1<<30|1024\*1024\*1024|1024/1024/1024|1024\^3|GB"), GIB),
    (re.compile(r"1024\*\*2|2\*\*20|1<<20|1024\*1024|1024/1024|1048576|MB"), MIB),
    (re.compile(r"1e9|10\*\*9|1_?000_?000_?000"), 10**9),
    (re.compile(r"1e6|10\*\*6|1_?000_?000"), 10**6),
    (re.compile(r"1024|2\*\*10|1e3"), KIB),
)


class _Label(NamedTuple):
    text: str
    peak: bool
    what: str
    unit: int


def samples_of(texts: Sequence[Excerpt]) -> list[Sample]:
    """The figures that the labels of any text's code explain in any text, in order; none where no code prints memory under a label."""
    labels = list(_labels(texts))
    if not labels:
        return []
    alternatives = "|".join(re.escape(label.text) for label in sorted(labels, key=lambda x: -len(x.text)))
    found = re.compile(rf"^\s*({alternatives})\W{{0,4}}(\d{{1,13}}(?:\.\d{{1,12}})?)\s*$")
    by_text = {label.text: label for label in labels}
    out: list[Sample] = []
    for text in texts:
        for line in text.lines:
            if (m := found.match(line.text)) is not None:
                label, value = by_text[m[1]], round(float(m[2]) * by_text[m[1]].unit)
                allocated = label.what == "allocated"
                out.append(
                    Sample(
                        text.where(line), label.text, None, line.rank,
                        allocated_bytes=value if allocated and not label.peak else None,
                        reserved_bytes=value if not allocated and not label.peak else None,
                        peak_allocated_bytes=value if allocated and label.peak else None,
                        peak_reserved_bytes=value if not allocated and label.peak else None,
                    )
                )  # fmt: skip
    return out


def _labels(texts: Sequence[Excerpt]) -> Iterator[_Label]:
    seen: set[str] = set()
    for text in texts:
        for line in text.lines:
            if "memory_" not in line.text or len(line.text) > 400 or (m := _PRINTS.search(line.text)) is None:
                continue
            label, divisor = m[1].strip(" :=\t"), re.sub(r"[\s()]", "", m[4] or "1")
            unit = 1 if divisor == "1" else next((unit for named, unit in _DIVISORS if named.search(divisor)), None)
            if unit is not None and len(label) >= 3 and label not in seen and len(seen) < MOST:
                seen.add(label)
                yield _Label(label, m[2] is not None, "allocated" if m[3] == "allocated" else "reserved", unit)
