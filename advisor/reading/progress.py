"""The phase of a failure that has no telling frames: from what the logs say last before it, or else from what its reporter says."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.evidence import Failure, Frame
from advisor.reading.lines import Excerpt
from advisor.reading.phase import phase_of, phase_of_progress
from advisor.reading.told import phase_told


def with_loose(failures: Sequence[Failure], loose: Sequence[tuple[Frame, ...]]) -> tuple[Failure, ...]:
    """The failures; the first one with the frames of the only traceback that was pasted apart from its error: a call in a sentence is less than that."""
    if (
        not failures
        or any(frame.file for frame in failures[0].frames)
        or len(loose) != 1
        or failures[0].kind not in ("gpu-memory", "gpu-driver", "host-memory")
    ):
        return tuple(failures)
    first, frames = failures[0], loose[0]
    decided = None if first.phase else phase_of(frames)
    if decided is None:
        return (replace(first, frames=frames), *failures[1:])
    details = (*first.details, ("phase_from", f"{decided[1].file}:{decided[1].function} ({decided[1].where})"))
    return (replace(first, frames=frames, phase="forward" if decided[0] == "loss" else decided[0], details=details), *failures[1:])


def with_progress(failures: Sequence[Failure], texts: Sequence[Excerpt]) -> tuple[Failure, ...]:
    """The failures; the first one's phase filled from the lines above it, else from the other texts' last lines."""
    if not failures or failures[0].phase is not None or failures[0].kind == "not-memory":
        return tuple(failures)
    first = failures[0]
    name, _, number = first.where.rpartition(":")
    for text in sorted(texts, key=lambda t: t.name != name):
        lines = [line.text for line in text.lines if text.name != name or line.number < int(number or 0)][-400:]
        told = phase_of_progress(lines)
        if told is not None:
            details = (*first.details, ("phase_from", f"the log's last word before it: {told[1].strip()[:120]}"))
            return (replace(first, phase=told[0], details=details), *failures[1:])
    if first.kind == "gpu-memory" and (said := phase_told(texts)) is not None:
        details = (*first.details, ("phase_from", f"what was written beside it: {said[1].strip()[:120]}"))
        return (replace(first, phase=said[0], details=details), *failures[1:])
    return tuple(failures)
