"""What a person says of a failure whose message stands beside it ("I get CUDA out of memory:" above the error) is no failure of its own."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.evidence import Failure
from advisor.reading.tracebacks import exception_of


def without_restatements(failures: Sequence[Failure]) -> list[Failure]:
    """The failures, without bare words about one of the card's memory where a message with its counters or its frames is there too."""
    if not any(f.kind == "gpu-memory" and _is_shown(f) for f in failures):
        return list(failures)
    return [f for f in failures if not _is_bare(f)]


def _is_shown(failure: Failure) -> bool:
    """Whether it has what a program prints: at least a size, or where it happened."""
    sizes = (failure.requested_bytes, failure.capacity_bytes, failure.allocated_bytes, failure.free_bytes)
    return bool(failure.frames) or any(size is not None for size in sizes)


def _is_bare(failure: Failure) -> bool:
    return failure.kind == "gpu-memory" and not _is_shown(failure) and failure.phase is None and exception_of(failure.text) is None and not failure.details
