"""The driver moves memory to the host instead of failing (consumer cards on Windows, managed memory)."""

from __future__ import annotations

from advisor.evidence import Evidence
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.run import Run
from advisor.units import show


def _beyond(run: Run, evidence: Evidence) -> str | None:
    """More is allocated than the card has: only possible where the driver lends host memory."""
    usable = run.usable
    total = max((d.total_bytes or 0 for d in evidence.devices), default=0) or (usable[0] if usable else 0)
    figures = [s.peak_allocated_bytes or s.allocated_bytes or 0 for s in evidence.samples]
    failure = evidence.failure
    if failure is not None:
        figures.append(failure.allocated_bytes or 0)
        total = failure.capacity_bytes or total
    held = max(figures, default=0)
    return f"{show(held)} are allocated on a card of {show(total)}: the rest lies in host memory" if total and held > 1.02 * total else None


def _failed(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    return "it failed all the same: the host's share was used up too" if failure is not None and failure.kind == "gpu-memory" else None


RULE = Rule(
    id="driver-spill",
    tier="spare",
    title="The driver moves memory to the host instead of failing: the run is slow, not full",
    cleared="No more is allocated than the card has.",
    prior=-0.5,
    marks=(
        Mark(
            "driver-spill-beyond",
            4.0,
            "more than the card",
            "NVIDIA driver on Windows: CUDA system memory fallback; cudaMallocManaged oversubscription",
            when=_beyond,
        ),
        Mark("driver-spill-failed", -2.5, "it failed", "lending has an end: what fills card and host is the cause then", when=_failed),
        Mark(
            "driver-spill-named",
            2.0,
            "shared GPU memory is in use",
            "Windows task manager 'Shared GPU memory'; NVIDIA control panel 'CUDA - Sysmem Fallback Policy'",
            pattern=r"[Ss]hared GPU memory|[Ss]ysmem [Ff]allback",
        ),
    ),
    remedies=("leave-headroom", "smaller-micro-batch"),
    fires=(
        Example(
            "more allocated than there is",
            job=job("Qwen/Qwen2.5-3B", hardware="{gpu: rtx-4090}", batch="{micro_batch: 4, seq_len: 4096}"),
            text="step 10 max_memory_allocated 29.31 GiB\nstep 20 max_memory_allocated 29.31 GiB\nstep 30 max_memory_allocated 29.32 GiB\n",
        ),
    ),
    quiet=(Example("a full card", text=oom("512.00 MiB", allocated=76.5)),),
)
