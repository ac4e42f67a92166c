"""Whose modelling code runs: the trainer's own where it has one, else Hugging Face's."""

from __future__ import annotations

from advisor.resolving import family
from advisor.resolving.draft import Draft


def settle(draft: Draft) -> None:
    """``model.source``: after the strategy, because RL frameworks run Megatron's modules only where they train with Megatron."""
    draft.table("model.source")
    if draft.get("parallel.strategy") in family.MEGATRON_STRATEGIES:
        draft.infer("model.source", "megatron", "Megatron's strategies divide Megatron's own modules")
