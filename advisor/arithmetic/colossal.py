"""ColossalChat's trainers: what they name, what their losses hold, and the reference's cache.

Read at ColossalAI 4f9953b, applications/ColossalChat/coati (trainer/sft.py, dpo.py, orpo.py, models/utils.py ``calc_masked_log_probs``). Its loops name
the logits in the training function itself, so that they live until the same line of the next step; the sums are those of the same operations run
under a tracker of storages, in units of one tensor of all logits.
"""

from __future__ import annotations

from advisor.arithmetic.context import Context
from advisor.arithmetic.losses import LOSS_FUNCTION_SINCE, Loss

COLOSSAL = "colossalchat"
COATI = "ColossalAI applications/ColossalChat/coati/trainer/{}.py _train, models/utils.py calc_masked_log_probs"


def refers(ctx: Context) -> bool:
    """Whether a reference runs beside the policy's graph, in the same step."""
    return ctx.framework == COLOSSAL and ctx.job.objective == "dpo" and ctx.job.reference not in (None, "none", "precomputed")


def names_outputs(ctx: Context) -> bool:
    """Whether the loop's own variables keep the logits through the backward pass and into the next step."""
    return ctx.framework == COLOSSAL and ctx.source == "huggingface" and ctx.job.objective in ("sft", "pretrain", "dpo", "orpo")


def loss(ctx: Context, logits: int) -> Loss:
    """DPO (and SimPO, which is DPO without a reference) or ORPO, for one token of a pair's rows and one vocabulary entry.

    ``logits``: bytes of an entry as the head gives it; before 4.46 transformers hands out its fp32 cast.
    """
    wide = logits if ctx.at_least("transformers", *LOSS_FUNCTION_SINCE) else 4
    made = logits + wide if wide > logits else wide
    return _odds(logits, wide) if ctx.job.objective == "orpo" else _pairs(ctx, logits, wide, made)


def _pairs(ctx: Context, logits: int, wide: int, made: int) -> Loss:
    """Chosen and rejected in one forward pass, a log-softmax of each half (whose shifted view is copied for it), then the reference's in the same way.

    Backward: the halves' small gradients wait for the two slices, each of which is spread over all logits, chosen's last: half a tensor and two
    whole ones beside the logits that are named; before that the log-softmax's two gradients, which are less.
    """
    named = wide * (2 if refers(ctx) else 1)
    policy = max(named + made, named + wide + wide / 2)
    peak = max(policy, 3 * wide + made, 4.0 * wide) if refers(ctx) else policy
    why = f"logits and log-softmax of both halves{', the reference of the step before and its new one' if refers(ctx) else ''}; backward: two spread gradients"
    return Loss(peak, 2.5 * wide, float(named), why, COATI.format("dpo"), narrow=float(logits) if wide > logits else 0.0, wide=float(wide))


def _odds(logits: int, wide: int) -> Loss:
    """ORPO: the model's own loss on all rows (rejected ones masked), the logits once more in fp32, a log-softmax of each half.

    Last backward is the cross entropy's: its log-softmax and two gradients beside the halves' gradient, which is as wide as the logits.
    """
    copied = 4 if wide < 4 else 0  # actor_all_logits = logits.to(fp32): the same tensor where they are that already
    named = wide + copied
    cross_entropy = 12 if wide == 4 else logits + 4 + 4
    forward = max(named + cross_entropy, named + 4 + 4 + 2)
    backward = 12 + wide
    why = "logits, fp32 logits, cross entropy's log-softmax and the halves'; backward: cross entropy's three tensors beside the halves' gradient"
    return Loss(float(forward), float(backward), float(named), why, COATI.format("orpo"), narrow=float(logits) if logits < 4 else 0.0)
