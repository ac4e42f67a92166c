"""What a watched run's log says, for the command, the page and comparisons. Knows no torch; bounded whatever the log holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from advisor.measurement.eventlog import MAX_LINE, MAX_READ_LINES

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
    torch, stride = "", 1
    for event in events:
        kind = event["kind"]
        kinds[kind] += 1
        if kind == "finding" and isinstance(event.get("title"), str) and isinstance(event.get("cause"), str):
            if len(findings) < MAX_FINDINGS:
                findings.append({**event, "title": event["title"][:_TEXT]})
        elif kind == "step" and isinstance(event.get("peaks"), dict):
            sizes = _sizes(event["peaks"])
            if sizes and max(sizes.values()) > max(peaks.values(), default=-1):
                parts = _sizes(event.get("parts"))
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
            torch = str(event.get("torch", ""))[:60]
        elif kind == "device":
            device = [*device[-199:], dict(event)]
    return {
        "version": 1, "events": sum(kinds.values()), "steps": kinds["step"], "ended": kinds["end"] >= kinds["start"] > 0, "peaks": peaks, "parts": parts,
        "warnings": [f for f in findings if f.get("level") == "warning"], "notes": [f for f in findings if f.get("level") != "warning"],
        "attention": dict(attention.most_common(50)), "failures": failures, "device": device, "course": course, "broken_lines": len(broken),
        "torch": torch,
    }  # fmt: skip


def _sizes(value: Any) -> dict[str, int]:
    """Bytes by name, of a mapping that a log holds."""
    if not isinstance(value, dict):
        return {}
    return {str(k)[:60]: v for k, v in [*value.items()][:40] if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 60}
