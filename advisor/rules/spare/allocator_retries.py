"""The run lives at the card's edge: cached blocks are freed and asked for again."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import oom
from advisor.run import Run

_RETRIES = pattern(r"(?:cudaMalloc retries|num_alloc_retries|num_device_alloc_retries)['\"]?\s*[:=|]?\s*(\d{1,9})", re.IGNORECASE)


def _retries(_run: Run, evidence: Evidence) -> str | None:
    for line in evidence.lines:
        found = _RETRIES.search(line.text)
        if found and int(found.group(1)) > 0:
            return f"{found.group(1)} allocations succeeded only after the cache was emptied ({line.where})"
    return None


def _failed(_run: Run, evidence: Evidence) -> str | None:
    return "the run failed" if evidence.failure is not None else None


RULE = Rule(
    id="allocator-retries",
    tier="spare",
    title="The run lives at the card's edge: cached memory is given back and asked for again",
    cleared="No allocation had to be tried again.",
    prior=-0.5,
    marks=(
        Mark("allocator-retries-count", 3.0, "retries", "torch.cuda.memory_stats num_alloc_retries; memory_summary 'cudaMalloc retries'", when=_retries),
        Mark(
            "allocator-retries-flush",
            2.5,
            "the framework sees the cache being flushed in a step",
            "DeepSpeed engine/stage3: 'pytorch allocator cache flushes since last step'",
            pattern=r"allocator cache flushes since last step",
        ),
        Mark("allocator-retries-failed", -3.0, "failed", "retries come before every failure", when=_failed),
    ),
    remedies=("leave-headroom", "expandable-segments", "smaller-micro-batch"),
    fires=(
        Example(
            "retries in the summary",
            text="|                  PyTorch CUDA memory summary, device ID 0                 |\n"
            "|            CUDA OOMs: 0            |        cudaMalloc retries: 37        |\n",
        ),
    ),
    quiet=(Example("a failure", text=oom("512.00 MiB", allocated=76.5)),),
)
