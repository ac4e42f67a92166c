"""Files that are no text, and what follows from them once the job is known: memory snapshots and safetensors headers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.evidence import Fact, Line
from advisor.job import Job
from advisor.reading import safetensors, snapshot
from advisor.reading.snapshot.telling import Told, tell
from advisor.reading.sources import Text

if TYPE_CHECKING:
    from advisor.architecture.shape import Architecture
    from advisor.reading.configs.config_reading import ConfigReading


def snapshot_of(text: Text) -> Told:
    """A snapshot pickle as evidence, read in a process of its own.

    Raises:
        RefusedError: with what was found in it.
    """
    from advisor.reading.snapshot.process import summary_of
    from advisor.reading.snapshot.summary import read_summary

    if text.source is None:
        raise ValueError("a pickle that cannot be read from here; name the file itself")
    return tell(text.name, read_summary(json.dumps(summary_of(text.source))))


def is_snapshot_text(text: str) -> bool:
    """Whether a JSON text is a snapshot's summary, or a snapshot that was written as JSON."""
    from advisor.reading.snapshot.summary import is_summary

    return is_summary(text) or snapshot.is_json(text)


def snapshot_of_text(name: str, text: str) -> Told:
    """The evidence of such a text.

    Raises:
        RefusedError: with the reason.
    """
    from advisor.reading.snapshot.opcodes import RefusedError
    from advisor.reading.snapshot.summary import is_summary, read_summary, summarise

    if is_summary(text):
        return tell(name, read_summary(text))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError("a memory snapshot as JSON that is not whole: it may have been cut off") from None
    return tell(name, read_summary(json.dumps(summarise(data, len(text)))))


def header_of(text: Text) -> tuple[ConfigReading, tuple[Line, ...]]:
    """A safetensors file's header as facts and lines.

    Raises:
        HeaderError: with the reason.
    """
    return safetensors.reading_of(text.name, safetensors.header(text.chunks()))


def lines_between(told: Sequence[Told], job: Job) -> tuple[Line, ...]:
    """What grew between snapshots, and which blocks have the size of the model's parameters; nothing without snapshots."""
    if not told:
        return ()
    from advisor.reading.snapshot.growth import growth_of
    from advisor.reading.snapshot.shapes import shapes_of

    shape = _shape(job)
    return (*growth_of(told), *(shapes_of(told, shape) if shape is not None else ()))


def stored_width(job: Job, seen: Sequence[tuple[str, str, Any]]) -> Fact | None:
    """The dtype that an index file's total size implies for the job's model; ``None`` for a packed base or an unknown model."""
    if not any(key == "safetensors total_size" for _, key, _ in seen) or job.method.base not in (None, "none"):
        return None
    shape = _shape(job)
    return safetensors.width_of_index(seen, shape.parameters) if shape is not None else None


def _shape(job: Job) -> Architecture | None:
    from advisor.architecture import of_model

    try:
        return of_model(job.model)
    except ValueError:
        return None
