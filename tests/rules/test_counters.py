"""The identities of the counters, and what each implies."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.evidence import Evidence, Failure, Process
from advisor.rules import counters
from advisor.units import GIB, MIB


def _evidence(**figures: object) -> Evidence:
    return Evidence(failures=(Failure("gpu-memory", "error.txt:1", "CUDA out of memory", **figures),))  # type: ignore[arg-type]


def test_a_segment_says_nothing_of_the_tensor() -> None:
    for size in (2 * MIB, 20 * MIB):
        figures = counters.of(_evidence(requested_bytes=size, allocated_bytes=70 * GIB))
        assert figures.segment_only and figures.wanted == 70 * GIB


def test_memory_of_others_is_the_remainder() -> None:
    evidence = _evidence(capacity_bytes=24 * GIB, free_bytes=0, allocated_bytes=5 * GIB, reserved_unallocated_bytes=0)
    foreign = counters.of(evidence).foreign
    assert foreign is not None and foreign == 24 * GIB - 5 * GIB - counters.CONTEXT_HIGH


def test_one_listed_process_of_the_jobs_own_size_is_the_job() -> None:
    """In a container the process id that NVML prints is not the one that PyTorch knows."""
    evidence = _evidence(
        capacity_bytes=24 * GIB, free_bytes=0, allocated_bytes=22 * GIB, reserved_unallocated_bytes=GIB, processes=(Process(4711, round(23.6 * GIB)),)
    )
    assert counters.of(evidence).foreign == 0


def test_the_own_line_makes_the_remainder_exact() -> None:
    evidence = _evidence(
        capacity_bytes=24 * GIB, free_bytes=GIB, allocated_bytes=5 * GIB, reserved_unallocated_bytes=0, processes=(Process(None, 6 * GIB, own=True),)
    )
    assert counters.of(evidence).foreign == 17 * GIB


@settings(deadline=None)  # other work on the machine is no failure of the law
@given(st.integers(0, 80 * GIB), st.integers(0, 80 * GIB), st.integers(0, 80 * GIB))
def test_memory_of_others_is_never_negative(capacity: int, free: int, allocated: int) -> None:
    evidence = _evidence(capacity_bytes=capacity, free_bytes=min(free, capacity), allocated_bytes=allocated, reserved_unallocated_bytes=0)
    assert (counters.of(evidence).foreign or 0) >= 0
