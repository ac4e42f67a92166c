"""What grew between two snapshots of the same run, by place: what is kept from step to step shows where it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from advisor.evidence import Line
from advisor.reading.snapshot.telling import Told
from advisor.units import MIB, show

LEAST = 16 * MIB  # a smaller growth is a workspace or a cache warming up
MAX_PLACES = 8


def growth_of(told: Sequence[Told]) -> tuple[Line, ...]:
    """Lines for each pair of snapshots of one rank, in order of time where the traces say it, else as they were handed in."""
    by_rank: dict[int | None, list[Told]] = {}
    for item in told:
        by_rank.setdefault(item.samples[0].rank if item.samples else None, []).append(item)
    out: list[Line] = []
    for items in by_rank.values():
        ordered = sorted(items, key=_time) if all(_time(item) for item in items) else items
        for earlier, later in pairwise(ordered):
            out.extend(Line(later.name, text, later.samples[0].rank if later.samples else None) for text in _grown(earlier, later))
    return tuple(out)


def _time(item: Told) -> int:
    return max((int(d["trace"]["last_us"]) for d in item.summary["devices"] if d["trace"]), default=0)


def _grown(earlier: Told, later: Told) -> Iterator[str]:
    before = {d["device"]: d for d in earlier.summary["devices"] if d["has_segments"]}
    for device in later.summary["devices"]:
        old = before.get(device["device"])
        if old is None or not device["has_segments"]:
            continue
        whole = device["allocated"] - old["allocated"]
        if abs(whole) >= LEAST:
            yield f"snapshot growth: {'+' if whole > 0 else '-'}{show(abs(whole))} in all from {earlier.name} to {later.name}"
        first, second = _sites(old), _sites(device)
        changed = sorted(((second.get(site, (0, ""))[0] - first.get(site, (0, ""))[0], site) for site in {*first, *second}), reverse=True)
        for more, site in changed[:MAX_PLACES]:
            if more >= LEAST and (site in first or not old.get("sites_left_out")):
                part = (second.get(site) or first[site])[1]
                yield f"snapshot growth: +{show(more)} from {site} ({part}), {earlier.name} to {later.name}"


def _sites(device: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    out: dict[str, tuple[int, str]] = {}
    for place in device["sites"]:
        size, part = out.get(place["site"], (0, place["part"]))
        out[place["site"]] = size + place["bytes"], part
    return out
