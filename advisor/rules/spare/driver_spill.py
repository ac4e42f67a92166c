"""The driver moves memory to the host instead of failing (consumer cards on Windows, managed memory)."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom
from advisor.run import Run
from advisor.units import GIB, MIB, show

_WINDOWS = pattern(r"\bWindows\b|\bWDDM\b|[A-Z]:\\\\?[A-Za-z]")
_SLOW = pattern(
    r"\b(?:increas\w+|higher|longer|slow\w*|drop\w*|decreas\w+|low)\b.{0,40}\b(?:iterations?|steps?|s/it|it/s|speed|GPU (?:usage|utili[sz]ation|load))\b|"
    r"\b(?:iterations?|steps?|training|speed|GPU (?:usage|utili[sz]ation))\b.{0,60}\b(?:slow\w*|slows? down|times (?:slower|longer)|drops?|crawl\w*)\b",
    re.IGNORECASE,
)
LEAST = GIB // 2  # of host memory mapped to the card: the desktop and pinned buffers alone take some hundred MiB
_SHARED = pattern(
    r"shared GPU memory\W{0,3}(?:\s?usage)?[^\d\n]{0,24}(\d{1,4}(?:\.\d{1,2})?)\s?(?:/\s?\d{1,4}(?:\.\d{1,2})?\s?)?(GB|GiB|MB|MiB)\b", re.IGNORECASE
)


def _beyond(run: Run, evidence: Evidence) -> str | None:
    """More is allocated or reserved than the card has: only possible where the driver lends host memory."""
    usable = run.usable
    total = max((d.total_bytes or 0 for d in evidence.devices), default=0) or (usable[0] if usable else 0)
    figures = [s.peak_allocated_bytes or s.allocated_bytes or 0 for s in evidence.samples]
    failure = evidence.failure
    if failure is not None:
        figures.append((failure.allocated_bytes or 0) + (failure.reserved_unallocated_bytes or 0))
        total = failure.capacity_bytes or total
    held = max(figures, default=0)
    return f"{show(held)} are held on a card of {show(total)}: the rest lies in host memory" if total and held > 1.02 * total else None


def _lent(_run: Run, evidence: Evidence) -> str | None:
    """The task manager shows host memory in use by the card: with the policy of falling back, that is what no longer fits into its own."""
    for line in evidence.lines:
        if (found := _SHARED.search(line.text)) is not None:
            size = round(float(found[1]) * (GIB if found[2][0] in "Gg" else MIB))
            if size >= LEAST:
                return f"{show(size)} of host memory are in use by the card ({line.where})"
    return None


def _slow(_run: Run, evidence: Evidence) -> str | None:
    """On Windows a step that no longer fits gets slow, the GPU waits for the link, and nothing fails."""
    if any(f.kind == "gpu-memory" for f in evidence.failures):
        return None
    lines = [line.text for line in evidence.lines]
    windows, slow = any(_WINDOWS.search(text) for text in lines), next((line for line in evidence.lines if _SLOW.search(line.text)), None)
    return f"on Windows, steps get slow and nothing fails ({slow.where})" if windows and slow is not None else None


def _failed(run: Run, evidence: Evidence) -> str | None:
    """A failure with its own text; one that is only told, with no size and no frame, may be of another run."""
    failure = evidence.failure
    if failure is None or failure.kind != "gpu-memory" or (failure.requested_bytes is None and not failure.frames and _lent(run, evidence)):
        return None
    return "it failed all the same: the host's share was used up too"


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
        Mark("driver-spill-lent", 2.5, "host memory in use by the card", "Windows task manager 'Shared GPU memory': used / half of RAM", when=_lent),
        Mark("driver-spill-slow", 2.5, "slow, not full", "NVIDIA driver on Windows since 536.40: CUDA system memory fallback", when=_slow),
        Mark("driver-spill-failed", -2.5, "it failed", "lending has an end: what fills card and host is the cause then", when=_failed),
        Mark(
            "driver-spill-named",
            2.0,
            "shared GPU memory is in use",
            "Windows task manager 'Shared GPU memory'; NVIDIA control panel 'CUDA - Sysmem Fallback Policy'",
            pattern=r"[Ss]hared GPU memory|[Ss]ysmem [Ff]allback|共享 ?GPU ?(?:内存|显存)",
        ),
    ),
    remedies=("leave-headroom", "smaller-micro-batch"),
    fires=(
        Example("slow on Windows", text="Windows 10, RTX 3060 12GB\nIncreased iteration time and decreased GPU usage during the last 50 steps.\n"),
        Example(
            "half of a gigabyte and more is lent",
            text="Dedicated GPU memory 11.8/12.0 GB\nShared GPU memory 5.2/31.9 GB\nstep 60/900 [21:10<4:56:12, 21.2s/it]\n",
        ),
        Example(
            "more allocated than there is",
            job=job("Qwen/Qwen2.5-3B", hardware="{gpu: rtx-4090}", batch="{micro_batch: 4, seq_len: 4096}"),
            text="step 10 max_memory_allocated 29.31 GiB\nstep 20 max_memory_allocated 29.31 GiB\nstep 30 max_memory_allocated 29.32 GiB\n",
        ),
    ),
    quiet=(
        Example("a full card", text=oom("512.00 MiB", allocated=76.5)),
        Example("what the desktop maps", text="Shared GPU memory 0.2/15.8 GB\n" + oom("512.00 MiB", allocated=76.5)),
    ),
)
