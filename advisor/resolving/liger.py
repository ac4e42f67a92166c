"""Whether the switch for Liger's kernels asks for the loss too, by release and objective of TRL.

Read in the released packages: up to TRL 0.24 trl/trainer/{dpo,grpo,kto}_trainer.py look at ``use_liger_loss`` alone, and ``use_liger_kernel``
(transformers' own) only patches the model, whose fused cross entropy a trainer never runs that asks the model for logits. From 0.25 on the switch
stands for both. No release has a Liger loss for the other objectives but next-token cross entropy.
"""

from __future__ import annotations

from advisor.resolving.draft import Draft

FUSES = frozenset({"dpo", "grpo", "kto"})
NEXT_TOKEN = frozenset({"sft", "pretrain"})
ONE_KEY = (0, 25)


def only_kernels(draft: Draft) -> str | None:
    """Why a loss that was read from ``use_liger_kernel`` is not fused; ``None`` where it is, or where the switch was not read."""
    fact, objective = draft.facts.get("activations.loss"), draft.get("objective")
    if draft.framework != "trl" or fact is None or fact.kind != "read" or fact.value != "fused-linear" or objective is None or objective in NEXT_TOKEN:
        return None
    said = {key.rpartition(".")[2] for _, key, value in draft.evidence.seen_keys if value is True}
    if "use_liger_kernel" not in said or "use_liger_loss" in said:
        return None
    if objective not in FUSES:
        return f"TRL has no Liger loss for {objective}: use_liger_kernel patches the model, and the trainer asks it for logits"
    numbers = draft.versions.get("trl", "").split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers) or (int(numbers[0]), int(numbers[1])) >= ONE_KEY:
        return None
    return f"TRL {draft.versions['trl']}: use_liger_kernel patches the model alone; the loss of {objective} is fused by use_liger_loss until 0.25"
