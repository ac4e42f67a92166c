"""A snapshot's summary as evidence: samples, lines that rules can match by place, allocator facts, and its failure where it holds one.

Each line bears at most one size with a unit, so that no reader of log figures takes it for a series; further sizes are plain bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from advisor.evidence import Fact, Failure, Frame, Line, Sample
from advisor.reading.pattern import pattern as lazily
from advisor.reading.phase import phase_of
from advisor.units import show

LABEL = "memory snapshot"
LEAST_SHARE = 0.03  # of the peak: smaller places are not told
MAX_PLACES = 10
SURVIVED = 200  # allocations after a failure: it was caught, and the run went on
_RANK = lazily(r"rank[-_ ]?(\d{1,6})", re.IGNORECASE)


class Told(Struct, frozen=True):
    """What one snapshot says, all of its devices together."""

    name: str
    summary: Mapping[str, Any]
    samples: tuple[Sample, ...]
    lines: tuple[Line, ...]
    facts: tuple[Fact, ...]
    failures: tuple[Failure, ...]


def tell(name: str, summary: Mapping[str, Any]) -> Told:
    """Evidence of one summary; the file's name says its rank where it does (``snapshot_rank3.pickle``)."""
    named = _RANK.search(name)
    rank = int(named[1]) if named else None
    samples: list[Sample] = []
    lines: list[Line] = []
    failures: list[Failure] = []
    several = len(summary["devices"]) > 1
    for device in summary["devices"]:
        where = f"{name}:device {device['device']}" if several else name
        samples.append(_sample(where, device, rank, several))
        lines.extend(Line(where, text, rank) for text in _lines(device))
        failures.extend(_failures(where, device, rank))
    return Told(name, summary, tuple(samples), tuple(lines), tuple(_facts(name, summary)), tuple(failures))


def _sample(where: str, device: Mapping[str, Any], rank: int | None, several: bool) -> Sample:
    trace, known = device["trace"], device["has_segments"]
    return Sample(
        where,
        f"{LABEL}, device {device['device']}" if several else LABEL,
        rank=rank,
        allocated_bytes=device["allocated"] if known else None,
        reserved_bytes=device["reserved"] if known else None,
        peak_allocated_bytes=trace["peak"]["bytes"] if trace else None,
        peak_reserved_bytes=trace["peak_reserved"] if trace else None,
    )


def _lines(device: Mapping[str, Any]) -> Iterator[str]:
    trace = device["trace"]
    if trace is not None:
        peak = trace["peak"]
        yield f"snapshot peak: {show(peak['bytes'])} in all, at event {peak['event'] + 1} of {trace['events']}"
        yield from _places("peak", peak, peak["bytes"])
        for oom in trace["ooms"][-4:]:
            yield (
                f"snapshot oom: {show(oom['requested'])} requested by {oom['site']} ({oom['part']}); the device had {oom['device_free']} bytes free, "
                f"this process held {oom['allocated']} bytes"
            )
        if trace["oom_count"]:
            yield f"num_ooms: {trace['oom_count']}"
    if not device["has_segments"]:
        return
    yield f"snapshot holds: {show(device['allocated'])} at the end, in {device['blocks']} blocks of {device['segments']} segments"
    yield from _places("holds", device, device["allocated"])
    yield from _free(device)
    yield f"inactive_split_bytes.all.current: {device['inactive_split']}"
    yield f"active_bytes.all.current: {device['active']}"
    yield f"requested_bytes.all.current: {device['requested']}"


def _places(what: str, live: Mapping[str, Any], whole: int) -> Iterator[str]:
    for place in live["sites"][:MAX_PLACES]:
        if whole and place["bytes"] >= LEAST_SHARE * whole:
            yield f"snapshot {what}: {show(place['bytes'])} from {place['site']} ({place['part']}, {place['blocks']} blocks)"


def _free(device: Mapping[str, Any]) -> Iterator[str]:
    if device["inactive_split"]:
        yield (
            f"snapshot fragmentation: {show(device['inactive_split'])} free in {device['holes']} holes of partly used segments, "
            f"largest free block {device['largest_free']} bytes"
        )
    if device["releasable"]:
        yield f"snapshot cache: {show(device['releasable'])} in wholly free segments that empty_cache can return"
    if device["active"] > device["allocated"]:
        yield f"snapshot waiting: {show(device['active'] - device['allocated'])} freed, but held until another stream is done (record_stream)"
    pools = device["pools"]
    if pools:
        free = sum(p["free"] for p in pools)
        yield f"snapshot private pools: {show(sum(p['reserved'] for p in pools))} in {len(pools)} private pools, {free} bytes of it free"


def _facts(name: str, summary: Mapping[str, Any]) -> Iterator[Fact]:
    from advisor.reading.printed import allocator

    settings = dict(summary["allocator"])
    conf = settings.pop("conf", "")
    for key, value in {**allocator(str(conf)), **settings}.items():
        if re.fullmatch(r"[a-z]\w{1,40}", key):
            yield Fact(f"framework.allocator.{key}", value, "read", name, text=f"allocator_settings: {key} = {str(value)[:80]}")


def _failures(where: str, device: Mapping[str, Any], rank: int | None) -> Iterator[Failure]:
    """The last failure of the trace, where the run did not go on after it: a dump from an out-of-memory observer or an except clause."""
    trace = device["trace"]
    if trace is None or not trace["ooms"] or trace["ooms"][-1]["allocations_after"] > SURVIVED:
        return
    oom = trace["ooms"][-1]
    pools = sum(p["free"] for p in device["pools"])
    stranded = None
    if oom["reserved"] is not None and oom["reserved"] >= oom["allocated"]:
        stranded = max(oom["reserved"] - oom["allocated"] - pools, 0)
    frames = tuple(Frame(where, *_split(place), rank=rank) for place in reversed([(p, line) for p, line in oom["frames"]]))
    decided = phase_of(frames)
    yield Failure(
        "gpu-memory",
        where,
        f"snapshot: out of memory, {show(oom['requested'])} requested with {show(oom['device_free'])} free on the device, "
        f"{show(oom['allocated'])} allocated by this process",
        "cuda",
        rank,
        device["device"],
        requested_bytes=oom["requested"],
        free_bytes=oom["device_free"],
        allocated_bytes=oom["allocated"],
        reserved_unallocated_bytes=stranded,
        private_pool_bytes=pools or None,
        phase=decided[0] if decided is not None else None,
        frames=frames,
        details=(("snapshot", True), ("site", oom["site"]), ("part", oom["part"])),
    )


def _split(place: tuple[str, int]) -> tuple[str, int, str]:
    file, _, function = place[0].rpartition(":")
    return file or place[0], place[1], function


def joined(read: tuple[Failure, ...], told: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Failures of snapshots that no text tells: one that asks for the same bytes is the same failure, and the text prints more."""
    out = list(read)
    for failure in told:
        asked = failure.requested_bytes or 0
        same = any(
            f.kind == "gpu-memory" and f.requested_bytes is not None and abs(f.requested_bytes - asked) <= max(f.tolerance("requested"), 1) for f in read
        )
        if not same:
            out.append(failure)
    return tuple(out)
