"""Counts what the allocator hands out while a step runs: on CUDA and ROCm torch's own statistics, on a CPU the profiler's memory events.

Neither looks at operators, so nothing that a library allocates on the way escapes (buckets, gathered parameters, temporaries of kernels).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

PREFIX = "advisor."
PHASES = ("forward", "backward", "step")


class CpuCounter:
    """Peaks by phase on a CPU. ``base_bytes``: what was alive before; the profiler sees only what comes and goes."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def step(self, base_bytes: int) -> Iterator[None]:
        """Count one step; :attr:`peaks` are its largest bytes by phase afterwards."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            yield
        profiler = seen.profiler
        assert profiler is not None and profiler.kineto_results is not None
        events: list[Any] = sorted(profiler.kineto_results.events(), key=lambda e: e.start_ns())
        spans = [(e.name().removeprefix(PREFIX), e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name().startswith(PREFIX)]
        alive = base_bytes
        for event in events:
            if event.name() != "[memory]" or event.device_type() != torch._C._autograd.DeviceType.CPU:
                continue
            alive += event.nbytes()
            for phase, start, end in spans:
                if start <= event.start_ns() <= end:
                    self.peaks[phase] = max(self.peaks.get(phase, base_bytes), alive)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase of the step."""
        with torch.profiler.record_function(f"{PREFIX}{name}"):
            yield

    def reserved(self) -> int | None:
        """A CPU has no caching allocator."""
        return None


class CudaCounter:
    """Peaks by phase from ``torch.cuda`` statistics (CUDA and ROCm)."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def step(self, base_bytes: int) -> Iterator[None]:
        """Count one step."""
        del base_bytes
        yield

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """One phase of the step."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        yield
        torch.cuda.synchronize()
        self.peaks[name] = max(self.peaks.get(name, 0), torch.cuda.max_memory_allocated())

    def reserved(self) -> int | None:
        """Bytes that the allocator holds."""
        return int(torch.cuda.memory_reserved())
