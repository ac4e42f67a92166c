"""An inference engine that does not come up with its share of the card: which way the share has to go, and what its own text lets one compute.

vLLM ``v1/core/kv_cache_utils.py`` compares the cache that one sequence of full length needs with what is left of the share after weights
and activations; ``v1/worker/utils.py request_memory`` compares the share with what is free; SGLang alike. The first two want a larger
share or a shorter longest sequence, the last a smaller share.
"""

from __future__ import annotations

from typing import Any

from advisor.evidence import Evidence
from advisor.reading.serving import KEY as SERVES
from advisor.report import Doing
from advisor.rules.rule import Form
from advisor.run import Run

LARGER = frozenset({"cache-too-small", "no-cache"})  # of what the reader says why it did not start
SMALLER = frozenset({"sampler-warm-up", "graph-capture", "free-memory", "memory-changed"})
_SHARE = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
_LENGTH = {"vllm": "max_model_len", "sglang": "context_length"}


def form(run: Run, evidence: Evidence) -> Form | None:
    """The form by the engine's own reason; ``None`` where it prints none."""
    failure = evidence.failure
    if failure is None or failure.kind != "engine-start":
        return None
    told = dict(failure.details)
    reason, engine = told.get("why"), str(told.get("engine") or "vllm")
    alone = run.job.rollout is None
    flags = alone and any(key == SERVES for _, key, _ in evidence.seen_keys)
    beyond = " No training was read: what an engine needs for itself is not estimated here." if alone else ""
    if reason in LARGER:
        return _larger(told, engine, alone, beyond, flags)
    if reason in SMALLER:
        why = f"The engine takes its share before it warms up; what it needs besides must stay free.{beyond}"
        lines = {engine: (f"{_SHARE[engine]}: lower it by 0.05 to 0.1", "max_num_seqs: fewer sequences are warmed up at once")}
        title = "The engine's share leaves too little of the card for its own warm-up" if reason != "free-memory" else None
        doing = {"rollout-fraction": Doing("Give the engine a smaller share", why, lines)}
        general = "The engine's memory share and the rest of the job exceed the card together"
        return Form(title or ("Less of the card is free than the engine was told to use" if alone else general), doing=doing)
    return None


def _larger(told: dict[str, Any], engine: str, alone: bool, beyond: str, flags: bool) -> Form:
    longest = told.get("longest_possible") or told.get("cache_tokens")
    wanted = told.get("max_length")
    asked = f" of {wanted:,} tokens" if wanted else ""
    room = told.get("cache_available_gib")
    size = f" in the {room:g} GiB that are left for it" if room and room > 0 else ""
    holds = f" It holds {longest:,} tokens{size} as it is." if longest else ""
    share, length = (_flag(_SHARE[engine]), _flag(_LENGTH[engine])) if flags else (_SHARE[engine], _LENGTH[engine])
    set_to = " " if flags else "="
    why = f"The cache must hold one sequence of the longest length{asked}.{holds}{beyond}"
    shorter = (f"{length}{set_to}{longest}" if longest else f"{length}: no longer than prompt and answer really are",)
    beside = "" if alone else "   # only as far as the trainer leaves room: put it to sleep or give the engine cards of its own otherwise"
    larger = (f"{share}: raise it, to at most 0.95 where nothing else is on the card" if alone else f"{share}: raise it{beside}",)
    doing = {
        "shorter-sequence": Doing(f"Lower the engine's longest sequence{f' to {longest:,} tokens or fewer' if longest else ''}", why, {engine: shorter}),
        "rollout-fraction": Doing("Give the engine a larger share of the card", why, {engine: larger}),
    }
    title = "Within its share of the card the engine has no room for the cache of one sequence of full length"
    order = ("shorter-sequence", "rollout-fraction") if longest else ("rollout-fraction", "shorter-sequence")
    return Form(title, (*order, "rollout-sleep", "separate-rollout"), doing)


def _flag(name: str) -> str:
    """A setting as the flag of the server's command (vllm engine/arg_utils.py, sglang server_args.py)."""
    return f"--{name.replace('_', '-')}"
