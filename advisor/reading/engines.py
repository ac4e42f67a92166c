"""Inference engines that fail to start, warm up or wake up: vLLM and SGLang, with the figures that they print.

Sources: vllm ``v1/core/kv_cache_utils.py`` (cache blocks, max seq len), ``v1/worker/gpu_worker.py`` and ``worker/worker.py`` (free memory on
start-up), ``v1/worker/gpu_model_runner.py`` (sampler warm-up), ``csrc/cumem_allocator.cpp``; sglang ``model_runner.py`` (graph capture, unbalanced
cards), ``managers/schedule_batch.py`` (its pool of tokens).
"""

from __future__ import annotations

import re
from typing import Any

from advisor.evidence import FailureKind
from advisor.reading import pytorch
from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import GIB, Size

HEAD = lazily(
    r"No available memory for the cache blocks|Free memory on device|To serve at least one request|max seq len \(\d|when warming up (?:the )?sampler|"
    r"cumem_allocator|"
    r"Capture cuda graph failed|Not enough memory\. Please try|memory capacity is unbalanced|"
    r"(?:Prefill|Decode) out of memory\. Try|alloc_req_slots runs out|Error in memory profiling|memory profiling|gpu_memory_utilization|mem-fraction-static",
    re.IGNORECASE,
)
_N = r"(\d{1,9}(?:\.\d{1,6})?)"
_FREE = lazily(
    rf"Free memory on device(?: \S{{1,20}})?\s*\({_N}/{_N}\s*Gi?B\) on startup is less than desired GPU memory utilization \({_N}, {_N} Gi?B\)", re.IGNORECASE
)
_SERVE = lazily(
    rf"To serve at least one request with the models?'?s? max seq len \((\d+)\),? \(?{_N} Gi?B KV cache is needed,? "
    rf"which is larger than the available KV cache memory \({_N} Gi?B\)",
    re.IGNORECASE,
)
_ESTIMATED = lazily(r"estimated maximum model length is (\d+)", re.IGNORECASE)
_LONGER = lazily(r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((\d+)\)", re.IGNORECASE)
_WARM = lazily(r"when warming up (?:the )?sampler with (\d+) dummy requests", re.IGNORECASE)
_NONE = lazily(r"No available memory for the cache blocks", re.IGNORECASE)
_CUMEM = lazily(r"CUDA Error: out of memory at \S{0,300}cumem_allocator\.(?:cpp|cu):(\d+)", re.IGNORECASE)
_GRAPH = lazily(r"Capture cuda graph failed", re.IGNORECASE)
_PROFILING = lazily(rf"Error in memory profiling\. Initial free memory {_N}\s*(?:GiB)?,? current free memory {_N}", re.IGNORECASE)
_NOT_ENOUGH = lazily(r"Not enough memory\. Please try (?:to )?increas\w+ --mem-fraction-static", re.IGNORECASE)

_UNBALANCED = lazily(rf"memory capacity is unbalanced\..{{0,120}}?min_per_gpu_memory={_N}, local_gpu_memory={_N}", re.IGNORECASE)
_POOL = lazily(r"(Prefill|Decode) out of memory\. Try to lower your batch size|alloc_req_slots runs out of memory", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """A start-up, warm-up or wake-up failure of an engine; its figures in ``details``."""
    flat = re.sub(r"\s+", " ", text)
    if (m := _FREE.search(flat)) is not None:
        details: list[tuple[str, Any]] = [
            ("engine", "vllm"),
            ("free_gib", float(m[1])),
            ("total_gib", float(m[2])),
            ("memory_fraction", float(m[3])),
            ("wanted_gib", float(m[4])),
        ]
        sizes = {"free": _gib(m[1]), "capacity": _gib(m[2]), "requested": _gib(m[4])}
        return Found("engine-start", "cuda", None, sizes, details=(*details, ("why", "free-memory")), phase="load")
    if (m := _SERVE.search(flat)) is not None:
        details = [
            ("engine", "vllm"),
            ("max_length", int(m[1])),
            ("cache_needed_gib", float(m[2])),
            ("cache_available_gib", float(m[3])),
            ("why", "cache-too-small"),
        ]
        if (e := _ESTIMATED.search(flat)) is not None:
            details.append(("longest_possible", int(e[1])))
        return Found("engine-start", "cuda", details=tuple(details), phase="load")
    if (m := _LONGER.search(flat)) is not None:
        return Found(
            "engine-start",
            "cuda",
            details=(("engine", "vllm"), ("max_length", int(m[1])), ("cache_tokens", int(m[2])), ("why", "cache-too-small")),
            phase="load",
        )
    if (m := _WARM.search(flat)) is not None:
        return Found("engine-start", "cuda", details=(("engine", "vllm"), ("dummy_requests", int(m[1])), ("why", "sampler-warm-up")), phase="load")
    if _NONE.search(flat):
        return Found("engine-start", "cuda", details=(("engine", "vllm"), ("why", "no-cache")), phase="load")
    if (m := _PROFILING.search(flat)) is not None:
        return Found(
            "engine-start",
            "cuda",
            details=(("engine", "vllm"), ("initial_free_gib", float(m[1])), ("current_free_gib", float(m[2])), ("why", "memory-changed")),
            phase="load",
        )
    if (m := _CUMEM.search(flat)) is not None:
        return Found("gpu-driver", "cuda", details=(("engine", "vllm"), ("driver", "cumem"), ("line", int(m[1])), ("why", "wake-up")), phase="sync")
    if _GRAPH.search(flat):
        return _with_counters(flat, "engine-start", (("engine", "sglang"), ("why", "graph-capture")), "load")
    if _NOT_ENOUGH.search(flat):
        return Found("engine-start", "cuda", details=(("engine", "sglang"), ("why", "no-cache")), phase="load")
    if (m := _UNBALANCED.search(flat)) is not None:
        details = [("engine", "sglang"), ("least_free_gib", float(m[1])), ("own_free_gib", float(m[2])), ("why", "unbalanced")]
        return Found("engine-start", "cuda", details=tuple(details), phase="load")
    if _POOL.search(flat):
        return Found("engine-start", "cuda", details=(("engine", "sglang"), ("why", "pool-full")), phase="rollout")
    return None


def _gib(text: str) -> Size:
    decimals = len(text.partition(".")[2])
    return Size(round(float(text) * GIB), round(GIB * 0.5 * 10**-decimals))


def _with_counters(text: str, kind: FailureKind, details: tuple[tuple[str, Any], ...], phase: str) -> Found:
    inner = pytorch.read_failure(text)
    if inner is None:
        return Found(kind, "cuda", details=details, phase=phase)
    return Found(kind, inner.backend, inner.gpu, inner.sizes, inner.processes, (*details, *inner.details), phase)
