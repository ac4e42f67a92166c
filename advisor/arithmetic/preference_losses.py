"""Preference losses whose trainers make log-probabilities in another way than TRL's DPO: KTO, ORPO and CPO, and LLaMA-Factory's own.

Read in TRL 0.9.6 to 1.7.0 (trainer and experimental ``kto_trainer.py``, ``orpo_trainer.py``, ``cpo_trainer.py``), ms-swift 4
(rlhf_trainers/rlhf_mixin.py, kto_trainer.py) and LLaMA-Factory (train/dpo, train/kto, train/trainer_utils.py ``get_batch_logps``); the sums are
those of the same operations run under a tracker of storages. In units of one tensor of all logits, ``wide`` bytes an entry.
"""

from __future__ import annotations

from advisor.arithmetic.context import Context
from advisor.arithmetic.losses import Loss

ROWS_SINCE = (0, 15)  # selective_log_softmax: a row at a time; before, one log-softmax of all logits
KL_APART_SINCE = (0, 17)  # the KL pass is a method of its own: before, its logits were still named while the policy ran
OUTPUTS_NAMED_SINCE = (1, 6)  # the policy's outputs are named while the reference runs
KTO = "trl kto_trainer.py forward, get_batch_loss_metrics"
ORPO = "trl orpo_trainer.py, cpo_trainer.py concatenated_forward"
FACTORY = "llamafactory train/dpo/trainer.py, train/kto/trainer.py, train/trainer_utils.py get_batch_logps"


def refers(ctx: Context) -> bool:
    """Whether a reference model runs beside the policy's graph."""
    return ctx.job.reference not in (None, "none", "precomputed")


def _narrow(logits: int, wide: int) -> float:
    return float(logits) if wide > logits else 0.0


def kto(ctx: Context, logits: int, wide: int, rows: int, backward: float) -> Loss:
    """KTO on TRL: chosen and rejected logits are picked by index, which copies them; both copies are named while the reference runs.

    ``backward``: bytes of the backward pass of a row-wise log-softmax.
    """
    by_rows = ctx.at_least("trl", *ROWS_SINCE)
    kept = 0 if by_rows and wide == 4 else wide  # fp32 rows keep the logits themselves
    named = wide if kept and ctx.at_least("trl", *OUTPUTS_NAMED_SINCE) else 0
    kl = 0 if ctx.at_least("trl", *KL_APART_SINCE) else wide
    made = logits + wide if wide > logits else logits
    policy = kl + max(made, 2 * wide + kept)
    held = wide + (kept or wide) + named
    passing = wide / rows if by_rows and wide == 4 else wide * min(rows, 2) / rows
    scoring = max(float(made), wide + passing) if ctx.at_least("trl", *OUTPUTS_NAMED_SINCE) else 2.0 * wide
    peak = max(float(policy), held + kl + scoring) if refers(ctx) else float(policy)
    why = f"logits and their copies by label; the policy's {held:g} bytes held while the reference runs" if refers(ctx) else "logits and their copies by label"
    return Loss(peak, backward if by_rows else 3.0 * wide, 0.0, why, KTO, narrow=_narrow(logits, wide), wide=float(wide))


def odds_ratio(ctx: Context, logits: int, wide: int, rows: int, backward: float) -> Loss:
    """ORPO and CPO on TRL: cross entropy of the chosen half beside the log-probabilities of all; no reference.

    The chosen half is shifted (a copy unless it is one row) and its log-softmax kept; then come the rows' log-softmaxes.
    """
    by_rows = ctx.at_least("trl", *ROWS_SINCE)
    kept = 0 if by_rows and wide == 4 else wide
    half = wide / 2
    made = logits + wide if wide > logits else logits
    shifted = wide + half + (half if rows > 2 else 0)
    forward = max(float(made), shifted, wide + half + (kept or wide / rows))
    after = half + backward if by_rows else half + 3 * wide
    why = "logits + shifted half + its log-softmax, then log-softmax by row; backward: rows first, the half's log-softmax kept"
    return Loss(forward, max(after, 3.0 * wide), 0.0, why, ORPO, narrow=_narrow(logits, wide), wide=float(wide))


def factory(ctx: Context, logits: int) -> Loss:
    """LLaMA-Factory: logits as fp32, one log-softmax of all of them, the logits named by views (KTO: copies by label) while the reference runs."""
    made = logits + 4 if logits < 4 else 4
    if ctx.job.objective == "kto":
        policy, held, scoring = 8 + max(made, 8), 8, 4 + max(made, 8)  # the KL pass while the policy's logits and log-softmax are there
    else:
        policy, held, scoring = max(made, 8), 8, max(made, 8)
    peak = max(policy, held + scoring) if refers(ctx) else policy
    why = f"fp32 logits + log-softmax{'; held while the reference does the same' if refers(ctx) else ''}; backward: log-softmax + two gradients"
    return Loss(float(peak), 12.0, 0.0, why, FACTORY, narrow=_narrow(logits, 4))
