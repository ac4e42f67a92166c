"""Whose modelling code runs, the trainer's own where it has one, else Hugging Face's; and the head it puts on."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft

VALUE_HEAD_BESIDE = frozenset({"llama-factory"})  # trl's AutoModelForCausalLMWithValueHead: the language head stays and gives its logits


def settle(draft: Draft) -> None:
    """``model.source``: after the strategy, because RL frameworks run Megatron's modules only where they train with Megatron."""
    draft.table("model.source")
    if draft.get("parallel.strategy") in family.MEGATRON_STRATEGIES:
        draft.infer("model.source", "megatron", "Megatron's strategies divide Megatron's own modules")
    if draft.get("objective") == "reward" and draft.framework not in VALUE_HEAD_BESIDE:
        draft.default("model.classes", 1, "trl reward_trainer.py, axolotl, ms-swift, OpenRLHF: AutoModelForSequenceClassification with one label")
