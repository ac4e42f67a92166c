"""What is kept for the backward pass."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

_CHECKPOINTING_ON = frozenset({"trl", "llama-factory", "verl", "unsloth", "ms-swift"})


def settle(draft: Draft) -> None:
    """``activations.*``."""
    framework = draft.framework or ""
    on = framework in _CHECKPOINTING_ON
    if framework:
        draft.default("activations.checkpointing", "full" if on else "none", f"{framework}: its default")
    draft.assume("activations.checkpointing", "none", "no framework turns it on by itself", alternatives=("full",))
    draft.default("activations.reentrant", framework == "llama-factory", framework or "torch checkpoint use_reentrant")
    megatron = framework in family.MEGATRON
    draft.default("activations.attention", "te-fused" if megatron else "sdpa", framework or "transformers attn_implementation")
    draft.default("activations.loss", "vocab-parallel" if megatron else "full-fp32", framework or "transformers loss_utils.py")
    draft.default("activations.kernels", (), "no fused kernels asked for")
    draft.default("activations.compile", False, "every framework", "not asked for")
    draft.default("activations.sequence_packing", "padded", "every framework", "not asked for")
    draft.default("framework.use_cache", False, "transformers: off in training")
    draft.default("framework.keeps_outputs", False, "not seen")
