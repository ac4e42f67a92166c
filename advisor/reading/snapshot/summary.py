"""A snapshot as a small summary: plain JSON of some kilobytes that says what the pickle said, and that every reader takes in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from advisor.reading.snapshot.holdings import held
from advisor.reading.snapshot.opcodes import RefusedError
from advisor.reading.snapshot.replay import replayed
from advisor.reading.snapshot.sites import Sites
from advisor.reading.snapshot.structure import LARGEST, Parts, number, parts

VERSION = 1
KEY = "advisor_snapshot"
MAX_SUMMARY = 4 << 20  # bytes of a summary that is read back


def summarise(data: Any, size_bytes: int = 0) -> dict[str, Any]:
    """The summary of what a pickle or a JSON text holds.

    Raises:
        RefusedError: where it is no memory snapshot.
    """
    found = parts(data)
    sites = Sites()
    by_device: dict[int, list[Any]] = {}
    for segment in found.segments:
        by_device.setdefault(segment.device, []).append(segment)
    devices = []
    for index in sorted({*by_device, *(i for i, trace in enumerate(found.traces) if trace)}):
        segments = by_device.get(index, [])
        trace = found.traces[index] if index < len(found.traces) else []
        devices.append({"device": index, "has_segments": bool(segments), **held(segments, sites), "trace": replayed(trace, segments, sites)})
    return {KEY: VERSION, "form": found.form, "size_bytes": size_bytes, "skipped": found.skipped, "allocator": _settings(found), "devices": devices}


def _settings(found: Parts) -> dict[str, bool | int | float | str]:
    """Allocator settings under the names of PYTORCH_CUDA_ALLOC_CONF, and that variable itself as ``conf``; a limit that is not set is left out."""
    settings = found.settings
    out: dict[str, bool | int | float | str] = {}
    for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        if isinstance(settings.get(key), str) and settings[key]:
            out["conf"] = settings[key][:600]
    if isinstance(settings.get("expandable_segments"), bool):
        out["expandable_segments"] = settings["expandable_segments"]
    elif any(s.expandable for s in found.segments):
        out["expandable_segments"] = True
    split = settings.get("max_split_size")
    if type(split) is int and 0 < split < LARGEST:  # unset: the largest size_t, printed as -1
        out["max_split_size_mb"] = split >> 20
    threshold = settings.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold <= 1:
        out["garbage_collection_threshold"] = threshold
    return out


def is_summary(text: str | bytes) -> bool:
    """Whether a text is a summary that was written by an advisor."""
    return (b'"advisor_snapshot"' if isinstance(text, bytes) else '"advisor_snapshot"') in text[:200]  # type: ignore[operator]


def read_summary(text: str | bytes) -> dict[str, Any]:
    """A summary back from its JSON, every value checked: it may have been written by anyone.

    Raises:
        RefusedError: where it is none, or of a later version.
    """
    if len(text) > MAX_SUMMARY:
        raise RefusedError(f"a snapshot summary of {len(text):,} bytes; at most {MAX_SUMMARY:,} are read")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError("a snapshot summary that is no valid JSON: it may have been cut off") from None
    if not isinstance(data, Mapping) or data.get(KEY) != VERSION or not isinstance(data.get("devices"), list):
        raise RefusedError(f"a snapshot summary of another version than {VERSION}; write it again from the snapshot")
    allocator = data.get("allocator")
    return {
        "form": str(data.get("form"))[:80],
        "size_bytes": number(data.get("size_bytes")),
        "skipped": number(data.get("skipped")),
        "allocator": {str(k)[:60]: v for k, v in list(allocator.items())[:20] if isinstance(v, (bool, int, float, str)) and len(str(v)) <= 600}
        if isinstance(allocator, Mapping)
        else {},
        "devices": [_device(d) for d in data["devices"][:64] if isinstance(d, Mapping)],
    }


_SUMS = ("device", "reserved", "allocated", "active", "requested", "segments", "blocks", "inactive_split", "holes", "releasable", "largest_free")


def _device(raw: Mapping[str, Any]) -> dict[str, Any]:
    trace = raw.get("trace")
    return {
        **{key: number(raw.get(key)) for key in _SUMS},
        "expandable": raw.get("expandable") is True,
        "has_segments": raw.get("has_segments") is True,
        "pools": [{key: number(p.get(key)) for key in ("reserved", "allocated", "free")} for p in _list(raw, "pools", 64) if isinstance(p, Mapping)],
        "map": [_row(row) for row in _list(raw, "map", 64) if isinstance(row, Mapping)],
        **_live(raw),
        "trace": _trace(trace) if isinstance(trace, Mapping) else None,
    }


def _row(raw: Mapping[str, Any]) -> dict[str, Any]:
    flags = {key: raw.get(key) is True for key in ("large", "expandable")}
    return {**{key: number(raw.get(key)) for key in ("size", "allocated", "free", "largest_free", "holes")}, **flags, "pool": bool(raw.get("pool"))}


def _live(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sites": [
            {"site": _text(s.get("site")), "part": _text(s.get("part"), 30), "bytes": number(s.get("bytes")), "blocks": number(s.get("blocks"))}
            for s in _list(raw, "sites", 64)
            if isinstance(s, Mapping)
        ],
        "sites_left_out": number(raw.get("sites_left_out")),
        "sizes": [[number(s[0]), number(s[1]), _text(s[2], 30)] for s in _list(raw, "sizes", 500) if isinstance(s, list) and len(s) == 3],
    }


def _trace(raw: Mapping[str, Any]) -> dict[str, Any]:
    peak = raw.get("peak")
    peak = peak if isinstance(peak, Mapping) else {}
    at = peak.get("event")
    return {
        "events": number(raw.get("events")),
        "peak": {
            "bytes": number(peak.get("bytes")), "event": at if type(at) is int and -1 <= at < LARGEST else -1,
            "before_trace": number(peak.get("before_trace")), **_live(peak),
        },
        "peak_reserved": number(raw.get("peak_reserved")) or None,
        "oom_count": number(raw.get("oom_count")),
        "last_us": number(raw.get("last_us"), 1 << 62),
        "ooms": [_oom(o) for o in _list(raw, "ooms", 16) if isinstance(o, Mapping)],
    }  # fmt: skip


def _oom(raw: Mapping[str, Any]) -> dict[str, Any]:
    frames = [[_text(f[0]), number(f[1], 10**7)] for f in _list(raw, "frames", 60) if isinstance(f, list) and len(f) == 2]
    sums = {key: number(raw.get(key)) for key in ("event", "requested", "device_free", "allocated", "allocations_after")}
    return {**sums, "reserved": number(raw.get("reserved")) or None, "site": _text(raw.get("site")), "part": _text(raw.get("part"), 30), "frames": frames}


def _list(raw: Mapping[str, Any], key: str, limit: int) -> list[Any]:
    found = raw.get(key)
    return found[:limit] if isinstance(found, list) else []


def _text(raw: Any, limit: int = 360) -> str:
    from advisor.reading.masking import mask

    clean = "".join(c if c.isprintable() else "?" for c in raw[:limit]) if isinstance(raw, str) else ""
    return mask(clean)
