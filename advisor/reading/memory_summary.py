"""``torch.cuda.memory_summary()``: the 75-wide table, as samples and lines.

Source: torch ``cuda/memory.py`` memory_summary: rows in a unit chosen for each metric and cut, not rounded; so each figure is exact to one unit.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.evidence import Line, Sample
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern as lazily
from advisor.units import read_size

_HEAD = lazily(r"PyTorch CUDA memory summary, device ID (\d{1,4})")
_COUNTS = lazily(r"CUDA OOMs:\s*(\d{1,9})\s*\|\s*cudaMalloc retries:\s*(\d{1,9})")
_ROW = lazily(r"^\s*\|\s*([A-Z][\w -]{3,40}?)\s*\|\s*(\d{1,15}) ?([KMGT]?i?B)?\s*\|\s*(\d{1,15}) ?([KMGT]?i?B)?\s*\|")


def summaries_of(text: Excerpt) -> Iterator[tuple[Sample, tuple[Line, ...]]]:
    """Each summary as one sample (current and peak, allocated and reserved) and lines that say its other figures in words."""
    rows: dict[str, tuple[int, int]] = {}
    start: str | None = None
    device, counts = "0", (0, 0)
    for line in [*text.lines, None]:
        head = None if line is None else _HEAD.search(line.text)
        if line is None or head is not None:
            if start is not None and "Allocated memory" in rows:
                yield _sample(start, device, rows), _words(start, rows, counts)
            if line is not None and head is not None:
                rows, start, device, counts = {}, text.where(line), head[1], (0, 0)
            continue
        if start is None:
            continue
        if (m := _COUNTS.search(line.text)) is not None:
            counts = int(m[1]), int(m[2])
        elif (m := _ROW.match(line.text)) is not None and m[1] not in rows:
            current = read_size(f"{m[2]}{m[3] or 'B'}")
            peak = read_size(f"{m[4]}{m[5] or 'B'}")
            if current is not None and peak is not None:
                rows[m[1]] = current.bytes, peak.bytes


def _sample(where: str, device: str, rows: dict[str, tuple[int, int]]) -> Sample:
    allocated = rows["Allocated memory"]
    reserved = rows.get("GPU reserved memory")
    return Sample(
        where,
        f"memory_summary, device {device}",
        allocated_bytes=allocated[0],
        reserved_bytes=reserved[0] if reserved else None,
        peak_allocated_bytes=allocated[1],
        peak_reserved_bytes=reserved[1] if reserved else None,
    )


def _words(where: str, rows: dict[str, tuple[int, int]], counts: tuple[int, int]) -> tuple[Line, ...]:
    """What rules look for: retries, stranded bytes, bytes held by stream events, rounding."""
    out = [f"num_ooms: {counts[0]}", f"num_alloc_retries: {counts[1]}"]
    if "Non-releasable memory" in rows:
        out.append(f"inactive_split_bytes.all.current: {rows['Non-releasable memory'][0]}")
    if "Active memory" in rows:
        out.append(f"active_bytes.all.current: {rows['Active memory'][0]}")
    if "Requested memory" in rows:
        out.append(f"requested_bytes.all.current: {rows['Requested memory'][0]}")
    return tuple(Line(where, words) for words in out)
