"""Which releases have a loss fused with the head for objectives other than next-token cross entropy.

Read in the released packages: TRL 0.11 to 1.16 trl/trainer/*_trainer.py (``LigerFusedLinearDPOLoss`` and its kin), LLaMA-Factory 0.9.3 and 0.9.5
model/model_utils/liger_kernel.py. Liger's patch of the model fuses the cross entropy alone: a trainer that asks the model for logits gets all of them.
"""

from __future__ import annotations

from advisor.resolving.liger import ONE_KEY  # use_liger_kernel asks for the loss too; before, use_liger_loss did, and brought no other kernel
from advisor.run import Run
from advisor.techniques.conditions import older, trains_adapters, version

LIGER_SINCE = {"dpo": (0, 19), "grpo": (0, 17), "kto": (0, 17)}  # TRL; no release has one for the other objectives
BY_ITSELF = (1, 15)  # trainer/utils.py add_fused_lm_head: every trainer works in slices, and refuses Liger's fused cross entropy
NO_ADAPTERS = {"dpo": ((0, 29), (1, 8)), "kto": ((0, 17), (1, 8))}  # from, before: the Liger loss is refused with a PEFT model
NO_PRECOMPUTED = {"dpo": ((0, 29), (1, 14)), "kto": ((0, 17), (1, 14))}  # from, before: the Liger loss is refused with precompute_ref_log_probs
PREFERENCES = frozenset({"dpo", "kto", "orpo", "ppo", "reward"})


def no_fused_preference(run: Run) -> str | None:
    """Why the trainer of this objective has no loss fused with the head, in the release that is known."""
    name, objective = run.job.framework.name, run.job.objective
    if name == "llama-factory" and objective in PREFERENCES:
        return f"LLaMA-Factory's {objective} asks the model for its logits: its Liger kernels come without the fused loss there (require_logits)"
    if name != "trl":
        return None
    have = version(run, "trl")
    if have is not None and have >= BY_ITSELF:
        return "TRL works in slices by itself since 1.15, and refuses Liger's fused loss"
    if objective is None or objective in ("sft", "pretrain"):
        return None
    least = LIGER_SINCE.get(objective)
    if least is None:
        return f"TRL has no Liger loss for {objective}"
    if reason := older(run, "trl", least):
        return f"no Liger loss for {objective}: {reason}"
    for refused, what, there in (
        (NO_ADAPTERS, "adapters", trains_adapters(run)),
        (NO_PRECOMPUTED, "precomputed log-probabilities of the reference", run.job.reference == "precomputed"),
    ):
        since, before = refused.get(objective, ((0,), (0,)))
        if there and have is not None and since <= have < before:
            return f"TRL {'.'.join(map(str, have))} refuses the Liger loss of {objective} with {what}"
    return None


def has_loss_key(run: Run) -> bool:
    """Whether the loss has a key of its own (``use_liger_loss``), apart from the other kernels."""
    have = version(run, "trl")
    return run.job.framework.name == "trl" and run.job.objective in LIGER_SINCE and have is not None and have < ONE_KEY
