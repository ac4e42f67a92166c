"""How many tokens a forward pass sees."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

_MICRO = {"hf-trainer": 8, "trl": 8, "llama-factory": 8, "ms-swift": 1, "axolotl": 1, "nemo": 4, "openrlhf": 1, "unsloth": 2}
_SEQ = {"trl": 1024, "llama-factory": 2048, "axolotl": 512, "ms-swift": 2048, "nemo": 512, "openrlhf": 2048, "unsloth": 2048}


def settle(draft: Draft) -> None:
    """``batch.*``. What no framework settles stays open and is asked for."""
    framework = draft.framework or ""
    if draft.get("batch.token_budget") is None and framework in _MICRO:
        draft.default("batch.micro_batch", _MICRO[framework], f"{framework}: its default", alternatives=(1, 2, 4, 8))
    if framework in _SEQ:
        draft.default("batch.seq_len", _SEQ[framework], f"{framework}: its default", alternatives=(1024, 2048, 4096))
    draft.default("batch.gradient_accumulation", 1, framework or "every framework")
    draft.default("batch.packed", False, framework or "every framework", "packing is off unless asked for", alternatives=(True,))
    if draft.get("objective") in family.RL:
        draft.default("batch.generations", 2 if draft.get("objective") == "rloo" else 8, "trl GRPOConfig num_generations")
