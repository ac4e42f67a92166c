"""What a watched run's log says, for the command, the page and comparisons. Knows no torch; bounded whatever the log holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from advisor.measurement.eventlog import AGAIN, MAX_LINE, MAX_READ_LINES

MAX_FINDINGS = 500
MAX_STEPS = 2_000  # of the series; a longer one keeps every second of what it has
_TEXT = 2_000  # characters of a title


def events_of(data: bytes, *, broken: list[int]) -> Iterator[dict[str, Any]]:
    """The events of a log that was handed over; numbers of lines that are none are added to ``broken``."""
    for number, line in enumerate(data.split(b"\n", MAX_READ_LINES), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line) if len(line) <= 2 * MAX_LINE else None
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            yield event
        else:
            broken.append(number)


AT = "observed_step"  # beside the sizes by phase, of which one is called step


def summed(events: Iterable[Mapping[str, Any]], broken: list[int]) -> dict[str, Any]:
    """Findings, peaks by phase, their course over the steps, attention kernels, failures. ``broken`` is read when the events are through."""
    findings: list[dict[str, Any]] = []
    course: list[dict[str, Any]] = []
    peaks: dict[str, int] = {}
    parts: dict[str, int] = {}
    attention: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    resident: dict[str, dict[str, int]] = {}
    job: dict[str, Any] = {}
    gradients: dict[str, dict[str, float]] = {}
    checkpoints: dict[str, Any] = {"compared": 0, "exact": 0, "differ": 0, "bytes": 0, "not_compared": []}
    told: set[tuple[str, ...]] = set()
    stored, stride, ended = 0, 1, False
    for event in events:
        kind = event["kind"]
        kinds[kind] += not event.get(AGAIN)
        if kind == "finding" and isinstance(event.get("title"), str) and isinstance(event.get("cause"), str):
            same = tuple(str(event.get(name)) for name in ("time", "cause", "where", "title", "bytes"))
            if len(findings) < MAX_FINDINGS and not (event.get(AGAIN) and same in told):
                told.add(same)
                findings.append({**event, "title": event["title"][:_TEXT]})
        elif kind == "step" and isinstance(event.get("peaks"), dict):
            sizes = _sizes(event["peaks"])
            if sizes and max(sizes.values()) > max(peaks.values(), default=-1):
                parts = _sizes(event.get("parts"))
            resident = _by_dtype(event.get("resident")) or resident
            for phase, size in sizes.items():
                peaks[phase] = max(peaks.get(phase, 0), size)
            if not kinds["step"] % stride:
                course.append({**sizes, AT: event["step"] if isinstance(event.get("step"), int) else kinds["step"] - 1})
                if len(course) > MAX_STEPS:
                    course, stride = course[::2], stride * 2
        elif kind == "attention":
            attention[f"{event.get('backend')} at {event.get('where')}"[:300]] += 1
        elif kind in ("out-of-memory", "failed", "watcher-failed"):
            failures = [*failures[-19:], dict(event)]
        elif kind == "start":
            versions["torch"] = str(event.get("torch", ""))[:60]
            stored, ended = _sizes(event).get("stored_bytes", 0), False
        elif kind == "software" and isinstance(event.get("versions"), dict):
            versions |= {str(k)[:60]: str(v)[:60] for k, v in [*event["versions"].items()][:40]}
        elif kind == "job" and isinstance(event.get("job"), dict):
            job = event["job"]
        elif kind == "gradients" and isinstance(event.get("layers"), dict):
            gradients = _rates(event["layers"])
        elif kind == "checkpoint-compared":
            checkpoints["compared"] += 1
            checkpoints["exact"] += event.get("exact") is True
            checkpoints["differ"] += bool(event.get("differ"))
            checkpoints["bytes"] = max(checkpoints["bytes"], _sizes(event).get("bytes", 0))
        elif kind == "checkpoint-not-compared":
            checkpoints["not_compared"] = [*checkpoints["not_compared"], f"{event.get('block')}: {event.get('why')}"[:300]][:10]
        elif kind == "end":
            ended = True
        elif kind == "device":
            device = [*device[-199:], dict(event)]
    return {
        "version": 1, "events": sum(kinds.values()), "steps": kinds["step"], "ended": ended, "peaks": peaks, "parts": parts,
        "warnings": [f for f in findings if f.get("level") == "warning"], "notes": [f for f in findings if f.get("level") != "warning"],
        "attention": dict(attention.most_common(50)), "failures": failures, "device": device, "course": course, "broken_lines": len(broken),
        "torch": versions.get("torch", ""),
        "software": {name: version for name, version in versions.items() if version}, "job": job, "resident": resident, "gradients": gradients,
        "checkpoints": checkpoints,
        "stored": {**({"weights": stored} if stored else {}), **{part: sum(found.values()) for part, found in resident.items() if part == "optimizer"}},
    }  # fmt: skip


def by_part(found: Mapping[str, Any]) -> list[tuple[str, int | None, int | None, int | None]]:
    """``(part, stored, resident, peak live)`` in bytes, largest first. ``None``: such a part is not saved, or the log does not say.

    Stored is as saved; resident is between two steps, as an observed one begins; peak live is at the largest moment.
    """
    resident = {part: sum(sizes.values()) for part, sizes in found["resident"].items()}
    names = sorted({**found["parts"], **resident}, key=lambda part: -max(found["parts"].get(part, 0), resident.get(part, 0)))
    return [(part, found["stored"].get(part), resident.get(part, 0) if resident else None, found["parts"].get(part, 0)) for part in names]


def _sizes(value: Any) -> dict[str, int]:
    """Bytes by name, of a mapping that a log holds."""
    if not isinstance(value, dict):
        return {}
    return {str(k)[:60]: v for k, v in [*value.items()][:40] if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 60}


def _rates(layers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Shares of zeros and subnormals by layer, of a mapping that a log holds."""
    found = {}
    for name, rates in [*layers.items()][:40]:
        shares = {key: rates.get(key) for key in ("zero", "subnormal")} if isinstance(rates, dict) else {}
        known = {key: float(share) for key, share in shares.items() if isinstance(share, (int, float)) and 0 <= share <= 1}
        if len(known) == 2 and any(known.values()):
            found[str(name)[:120]] = known
    return found


def _by_dtype(value: Any) -> dict[str, dict[str, int]]:
    """Bytes by part and dtype, of a mapping that a log holds."""
    if not isinstance(value, dict):
        return {}
    return {str(part)[:60]: sizes for part, found in [*value.items()][:40] if (sizes := _sizes(found))}
