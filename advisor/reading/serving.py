"""An inference server that runs for itself: it trains nothing, its settings are flags of its own command, and what it prints of them is no trainer's.

Sources: vllm ``entrypoints/cli/serve.py`` (``vllm serve MODEL``), ``entrypoints/openai/api_server.py``; sglang ``launch_server.py``. What is left for the
cache: vllm ``worker/worker.py`` ("the rest of the memory reserved for KV Cache is 3.42GiB") and ``v1/worker/gpu_worker.py`` ("Available KV cache memory:
3.42 GiB").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from advisor.evidence import Failure
from advisor.reading.lines import Excerpt
from advisor.reading.merge import Ranked
from advisor.reading.pattern import pattern as lazily

KEY = "program.serves"
_COMMANDS = {
    "vllm": lazily(r"(?:^|[\s$>#;&])(?:vllm[ \t]+serve\b|python3?[ \t]+-m[ \t]+vllm\.entrypoints\.)"),
    "sglang": lazily(r"(?:^|[\s$>#;&])python3?[ \t]+-m[ \t]+sglang\.launch_server\b"),
}
_CACHE = lazily(r"(?:reserved for KV Cache is|Available KV cache memory:)\s*(-?\d{1,6}(?:\.\d{1,4})?)\s*Gi?B")
_TRAINS = ("framework.name", "batch.micro_batch", "batch.gradient_accumulation", "objective", "method.kind", "method.rank", "optimizer.name")


def served(texts: Iterable[Excerpt]) -> tuple[str, str, str] | None:
    """The key that says so: where, :data:`KEY`, and whose server."""
    for text in texts:
        for line in text.lines:
            for engine, command in _COMMANDS.items():
                if command.search(line.text) is not None:
                    return text.where(line), KEY, engine
    return None


def without_trainers(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The facts without those of a trainer's own engine, where nothing that was read is of training; all of them otherwise."""
    if any(item.fact.field in _TRAINS for item in ranked):
        return list(ranked)
    return [item for item in ranked if not item.fact.field.startswith("rollout.")]


def with_cache(failures: Iterable[Failure], texts: Iterable[Excerpt]) -> tuple[Failure, ...]:
    """Failures of an engine's start with what the engine says is left for its cache, where the failure's own text does not."""
    said = [float(m[1]) for text in texts for line in text.lines if (m := _CACHE.search(line.text)) is not None]
    return tuple(_with(failure, said[-1]) if said and failure.kind == "engine-start" else failure for failure in failures)


def _with(failure: Failure, gib: float) -> Failure:
    known = any(name == "cache_available_gib" for name, _ in failure.details)
    return failure if known else replace(failure, details=(*failure.details, ("cache_available_gib", gib)))
