"""A device's trace, replayed: when most was allocated, what lived then, and what was asked for when it failed.

Events, from c10 ``CUDACachingAllocator.cpp``: ``alloc`` and ``free_requested`` move the allocated bytes (``free_completed`` comes later where another stream
still uses the block), ``segment_alloc``/``segment_map`` and ``segment_free``/``segment_unmap`` the reserved ones; an ``oom`` event holds the free bytes of
the device in place of an address. An event's size is what was requested; the pool gives whole blocks of 512 bytes. A trace is a ring: what was
allocated before its first event is known from the blocks that are left at the end, and from frees without an allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.reading.snapshot.holdings import Live, by_site
from advisor.reading.snapshot.sites import Sites
from advisor.reading.snapshot.structure import Segment, number, rounded

MAX_OOMS, MAX_OOM_FRAMES = 16, 60
_GROWS, _SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def replayed(trace: Sequence[Any], segments: Sequence[Segment], sites: Sites) -> dict[str, Any] | None:
    """The peak (bytes, place in the trace, what lived) and the failures of one device; ``None`` where nothing was recorded."""
    if not trace:
        return None
    before = _before(trace, segments)
    base = sum(size for _, size, _ in before.values())
    total = highest = base
    at = -1
    reserved, reserved_peak = 0, 0
    live: dict[int, int] = {address: size for address, (_, size, _) in before.items()}
    ooms: list[dict[str, Any]] = []
    failed = allocations = 0
    for index, event in enumerate(trace):
        if not isinstance(event, Mapping):
            continue
        action = event.get("action")
        if action == "alloc":
            address, size = number(event.get("addr"), 1 << 63), rounded(number(event.get("size")))
            allocations += 1
            total += size - live.get(address, 0)
            live[address] = size
            if total > highest:
                highest, at = total, index
        elif action == "free_requested" or action == "free_completed":
            total -= live.pop(number(event.get("addr"), 1 << 63), 0)
        elif action in _GROWS:
            reserved += number(event.get("size"))
            reserved_peak = max(reserved_peak, reserved)
        elif action in _SHRINKS:
            reserved -= number(event.get("size"))
        elif action == "oom":
            failed += 1
            ooms = [*ooms[-MAX_OOMS + 1 :], {**_oom(event, index, total, reserved, sites), "allocations_after": allocations}]
    start = max(sum(s.size for s in segments) - reserved, 0) if segments else 0
    for oom in ooms:
        oom["reserved"] = oom["reserved"] + start if segments else None
        oom["allocations_after"] = allocations - oom["allocations_after"]
    return {
        "events": len(trace),
        "peak": {"bytes": highest, "event": at, "before_trace": base, **by_site(_alive(trace, at, before), sites)},
        "peak_reserved": reserved_peak + start if segments else None,
        "ooms": ooms,
        "oom_count": failed,
        "last_us": next((number(e.get("time_us"), 1 << 62) for e in reversed(trace) if isinstance(e, Mapping) and "time_us" in e), 0),
    }


def _before(trace: Sequence[Any], segments: Sequence[Segment]) -> dict[int, Live]:
    """What was alive before the first event."""
    seen: set[int] = set()
    out: dict[int, Live] = {}
    for event in trace:
        if not isinstance(event, Mapping):
            continue
        action = event.get("action")
        if action not in ("alloc", "free_requested", "free_completed"):
            continue
        address = number(event.get("addr"), 1 << 63)
        if address not in seen:
            seen.add(address)
            if action == "free_requested":  # a free_completed alone was no longer allocated
                size = number(event.get("size"))
                out[address] = (size, rounded(size), [])
    for segment in segments:
        for block in segment.blocks:
            if block.state == "allocated" and block.address not in seen:
                out[block.address] = (block.requested, block.size, block.frames)
    return out


def _alive(trace: Sequence[Any], at: int, before: Mapping[int, Live]) -> list[Live]:
    """What lived right after one event."""
    live: dict[int, int | None] = dict.fromkeys(before)
    for index in range(at + 1):
        event = trace[index]
        if not isinstance(event, Mapping):
            continue
        action = event.get("action")
        if action == "alloc":
            live[number(event.get("addr"), 1 << 63)] = index
        elif action == "free_requested" or action == "free_completed":
            live.pop(number(event.get("addr"), 1 << 63), None)
    out: list[Live] = []
    for address, made in live.items():
        if made is None:
            out.append(before[address])
        else:
            size, frames = number(trace[made].get("size")), trace[made].get("frames")
            out.append((size, rounded(size), frames if isinstance(frames, list) else []))
    return out


def _oom(event: Mapping[str, Any], index: int, allocated: int, reserved: int, sites: Sites) -> dict[str, Any]:
    frames = event.get("frames")
    frames = frames if isinstance(frames, list) else []
    site, part = sites.of(frames)
    shown = [(place, line) for place, line, _, _ in map(sites.frame, frames[: 4 * MAX_OOM_FRAMES]) if place]
    return {
        "event": index, "requested": number(event.get("size")), "device_free": number(event.get("device_free", event.get("addr"))), "allocated": allocated,
        "reserved": reserved, "site": site, "part": part, "frames": [[place, line] for place, line in shown[:MAX_OOM_FRAMES]],
    }  # fmt: skip
