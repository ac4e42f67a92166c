"""Who wakes up when a generation engine shares the card: the engine for new weights, the engine to generate, or the trainer itself.

Handing weights over keeps old and new ones (and what is gathered for them) on the card at once. An engine that wakes only to generate
finds what the trainer left there, and a trainer that comes back finds what the engine left: then the shares of the card do not add up.
"""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters
from advisor.run import Run

HANDS_OVER = (
    r"update_weights?|update_params|sync_weights|move_model_to_vllm|broadcast_to_vllm|rollout_mode|load_weights|push_weights|refit|gather_if_zero3|"
    r"sharding_manager|stream_weights|weights_(?:via|for)_ipc|broadcast_(?:weights|to)_|extract_weights|tags\s*=\s*\[?\s*['\"]weights|full_tensor|resume\(\s*tags?"
)
_HANDS_OVER = re.compile(HANDS_OVER, re.IGNORECASE)
_ENGINE = pattern(r"\bvllm/|sglang/|cumem|torch_memory_saver|create_and_map", re.IGNORECASE)
_RETURNS = pattern(
    r"[:.](wake_up|reload_(?:deepspeed_)?states|onload\w*|backload\w*|load_fsdp_\w+_to_gpu|load_megatron_\w+_to_gpu|load_(fsdp|megatron)_optimizer|"
    r"move_(\w+_)?to_(cuda|gpu|device)|prepare_for_training|offload_context: [^\n]*\bload_\w+)\b",  # ms-swift's context gives back as it ends
    re.IGNORECASE,
)
_MOVES = pattern(
    r"reload_\w*states|nn/modules/module\.py:(to|cuda|_apply|convert)\b|:load_\w+_to_gpu\b|:optimizer_to\b|\.to\(|\.cuda\(|\.resize_\(", re.IGNORECASE
)
ITS_OWN = 0.5  # of the card in the trainer's own allocator: above it the engine's share is not what is in the way
# NeMo-RL algorithms/grpo.py: refit_policy_generation wakes the weights and the cache one after the other; without a refit it only prepares generation
WAKES_APART = frozenset({"nemo"})


def _texts(evidence: Evidence) -> list[str]:
    frames = [f"{f.file}:{f.function}: {f.code}" for f in evidence.frames]
    return frames or [line.text for line in evidence.lines] + [f.text for f in evidence.failures]


def hands_over(run: Run, evidence: Evidence) -> bool:
    """Whether weights are being handed over: frames say so, or the framework wakes its engine only for that."""
    if any(_HANDS_OVER.search(text) for text in _texts(evidence)):
        return True
    return run.job.framework.name not in WAKES_APART and not trainer_returns(evidence)


def trainer_returns(evidence: Evidence) -> bool:
    """Whether the failing frames bring the trainer's own model or optimizer back to the card, and none is the engine's."""
    failure = evidence.failure
    frames = [f"{f.file}:{f.function}: {f.code}" for f in failure.frames] if failure is not None else []
    figures = counters.of(evidence)
    if figures.allocated is not None and figures.capacity is not None and figures.allocated > ITS_OWN * figures.capacity:
        return False  # what fills the card is the trainer's own
    if not frames or any(_ENGINE.search(text) or _HANDS_OVER.search(text) for text in frames):
        return False
    return any(_RETURNS.search(text) for text in frames) and bool(_MOVES.search(frames[-1]))
