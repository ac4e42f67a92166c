"""``torch.cuda.memory_stats()`` as it is printed or logged: a dictionary of dotted keys, in Python's or JSON's writing.

Source: torch ``cuda/memory.py`` memory_stats: ``allocated_bytes.all.current`` is memory_allocated(), ``reserved_bytes.all.current`` is memory_reserved().
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.evidence import Line, Sample
from advisor.reading.lines import Excerpt, LogLine
from advisor.reading.pattern import pattern as lazily

_PAIR = lazily(
    r"['\"]?((?:allocation|segment|active|inactive_split|allocated_bytes|reserved_bytes|active_bytes|inactive_split_bytes|requested_bytes|"
    "oversize_allocations|oversize_segments)"
    r"\.(?:(?:all|large_pool|small_pool)\.)?(?:current|peak|allocated|freed)|num_alloc_retries|num_ooms|num_sync_all_streams|num_device_alloc|"
    r"num_device_free|max_split_size)"
    r"['\"]?\s*[,:=]\s*(-?\d{1,18})"
)
_KEEP = (
    "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "inactive_split_bytes.all.current", "inactive_split_bytes.all.peak",
    "active_bytes.all.current", "requested_bytes.all.current", "max_split_size",
)  # fmt: skip


def stats_of(text: Excerpt) -> Iterator[tuple[Sample, tuple[Line, ...]]]:
    """Each printed dictionary as one sample and a line for each further figure that rules use."""
    values: dict[str, int] = {}
    first: LogLine | None = None
    for line in text.lines:
        pairs = _PAIR.findall(line.text) if "." in line.text or "num_" in line.text else []
        for key, number in pairs:
            if key in values and first is not None:
                yield from _out(text, first, values)
                values, first = {}, None
            first = first or line
            values[key] = int(number)
    if first is not None:
        yield from _out(text, first, values)


def _out(text: Excerpt, line: LogLine, values: dict[str, int]) -> Iterator[tuple[Sample, tuple[Line, ...]]]:
    if "allocated_bytes.all.current" not in values and "reserved_bytes.all.current" not in values and "num_alloc_retries" not in values:
        return
    where = text.where(line)
    sample = Sample(
        where,
        "memory_stats",
        rank=line.rank,
        allocated_bytes=values.get("allocated_bytes.all.current"),
        reserved_bytes=values.get("reserved_bytes.all.current"),
        peak_allocated_bytes=values.get("allocated_bytes.all.peak"),
        peak_reserved_bytes=values.get("reserved_bytes.all.peak"),
    )
    yield sample, tuple(Line(where, f"{key}: {values[key]}", line.rank) for key in _KEEP if key in values)
