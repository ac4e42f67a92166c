"""What log-probabilities of a batch's own tokens hold, for one token and one vocabulary entry: DPO's pairs, GRPO's update, on TRL and ms-swift.

Read in TRL 0.9.6 to 1.7.0: trainer/dpo_trainer.py ``concatenated_forward``, ``_compute_loss``; trainer/grpo_trainer.py
``_get_per_token_logps``; trainer/utils.py ``selective_log_softmax``. Under accelerate's mixed precision the logits reach that code in fp32
(accelerate utils/operations.py ``convert_outputs_to_fp32``); nothing else widens them.
"""

from __future__ import annotations

from advisor.arithmetic import colossal, preference_losses
from advisor.arithmetic.colossal import COLOSSAL
from advisor.arithmetic.context import FSDP, Context
from advisor.arithmetic.losses import Loss

ON_TRL = frozenset({None, "trl", "custom"})
SWIFT = "ms-swift"  # its DPO and KTO take rows like TRL's and name no logits (rlhf_trainers/rlhf_mixin.py); ORPO and CPO are TRL's
FACTORY = "llama-factory"
ROWS_SINCE = (0, 15)  # selective_log_softmax; GRPO took a row at a time from the first
COOLED_SINCE = (0, 16)  # GRPO divides the logits by the temperature: a second tensor
COOLED_IN_PLACE_SINCE = (1, 0)
NAMED_SINCE = (0, 29)  # DPO's _compute_loss names the policy's outputs while the reference runs
SHIFTED_COPY = ((0, 29), (1, 6))  # ... and made the shifted logits contiguous
SOURCE = "trl trainer/{}_trainer.py, trainer/utils.py selective_log_softmax; accelerate convert_outputs_to_fp32"


def picks(ctx: Context, form: str) -> bool:
    """Whether the loss is made of log-probabilities by a trainer's own code that is known, on whole logits."""
    if ctx.source != "huggingface" or form not in ("full-fp32", "full"):
        return False
    if ctx.job.objective == "grpo":
        return ctx.framework in ON_TRL
    if ctx.framework == COLOSSAL:
        return ctx.job.objective in ("dpo", "orpo")
    return ctx.job.objective in ("dpo", "kto", "orpo") and (ctx.framework in ON_TRL or ctx.framework in (SWIFT, FACTORY))


def widened(ctx: Context, logits: int) -> int:
    """Bytes of a logit as TRL's code meets it, ``logits`` as the head gives it."""
    mixed = ctx.job.precision.mixed
    wide = ctx.framework in ("trl", SWIFT) and (mixed == "autocast" or (mixed == "fsdp" and ctx.strategy in FSDP))
    return 4 if wide else logits


def loss(ctx: Context, logits: int) -> Loss:
    """The loss's bytes for a token and vocabulary entry. ``logits``: bytes of an element as the head gives them."""
    wide = widened(ctx, logits)
    rows = max(1, ctx.micro_batch)
    made = logits + wide if wide > logits else logits  # both, while the one is made of the other
    if ctx.framework == COLOSSAL:
        return colossal.loss(ctx, logits)
    if ctx.framework == FACTORY:
        return preference_losses.factory(ctx, logits)
    if ctx.job.objective == "orpo":
        return preference_losses.odds_ratio(ctx, logits, wide, rows, _backward(wide, rows)[0])
    if ctx.job.objective == "kto" and ctx.framework != SWIFT:
        return preference_losses.kto(ctx, logits, wide, rows, _backward(wide, rows)[0])
    if ctx.job.objective in ("dpo", "kto"):
        return _pairs(ctx, logits, wide, made, rows)
    return _update(ctx, logits, wide, made, rows)


def scored(ctx: Context, logits: int, rows: int) -> float:
    """Bytes of GRPO's pass without a graph over ``rows`` sequences: no row's log-probabilities stay but those of the row before."""
    wide = widened(ctx, logits)
    made = logits + wide if wide > logits else logits
    return max(made, _cooling(ctx, wide), wide + _passing(ctx, wide, rows))


def _pairs(ctx: Context, logits: int, wide: int, made: int, rows: int) -> Loss:
    """Policy, then reference, chosen and rejected in one batch; the policy's graph is alive while the reference runs."""
    swift = ctx.framework == SWIFT
    by_rows = swift or ctx.at_least("trl", *ROWS_SINCE)
    named = not swift and ctx.at_least("trl", *NAMED_SINCE)
    first, last = SHIFTED_COPY
    copied = wide if named and ctx.at_least("trl", *first) and not ctx.at_least("trl", *last) else 0
    if not by_rows:
        kept, held = wide, float(wide)
        forward = scoring = float(max(made, 2 * wide))
        backward, what = 3.0 * wide, "log-softmax, whole; backward: log-softmax + two gradients"
    else:
        kept = 0 if wide == 4 else wide  # fp32 keeps the logits themselves, 16-bit the rows' log-softmax
        held = kept + copied + (wide if named or wide == 4 else 0)
        forward = max(made, wide + copied + (kept or wide / rows))
        scoring = max(made, wide + copied + _passing(ctx, wide, rows, by_rows))
        backward, what = _backward(wide, rows)
    refers = preference_losses.refers(ctx)
    peak = max(forward, held + scoring) if refers else forward
    why = f"logits{' + fp32' if wide > logits else ''}{' + shifted copy' if copied else ''}; {what}"
    if refers:
        why = f"policy's {held:g} bytes held while the reference's logits are made and reduced ({scoring:g}); {why}"
    return Loss(peak, backward, 0.0, why, SOURCE.format("dpo"), narrow=float(logits) if wide > logits else 0.0, wide=float(wide))


def _update(ctx: Context, logits: int, wide: int, made: int, rows: int) -> Loss:
    """GRPO's policy pass: logits over the temperature, then a row at a time."""
    in_place = ctx.at_least("trl", *COOLED_IN_PLACE_SINCE)
    whole_rows = wide < 4 or not ctx.at_least("trl", *ROWS_SINCE)
    forward = max(made, _cooling(ctx, wide), wide + (wide if whole_rows else wide / rows))
    backward, what = _backward(wide, rows, whole_rows)
    if in_place:  # autograd's CopySlices of the division: the gradient for all logits, a clone of its part, that part divided, beside the incoming one
        backward, what = max(backward, 4.0 * wide), f"{what}; the division in place copies the gradient"
    why = f"logits{' + fp32' if wide > logits else ''}, over the temperature; {what}"
    return Loss(forward, backward, 0.0, why, SOURCE.format("grpo"), narrow=float(logits) if wide > logits else 0.0, wide=float(wide))


def _cooling(ctx: Context, wide: int) -> float:
    divided = ctx.at_least("trl", *COOLED_SINCE) and not ctx.at_least("trl", *COOLED_IN_PLACE_SINCE)
    return 2.0 * wide if divided else float(wide)


def _passing(ctx: Context, wide: int, rows: int, by_rows: bool | None = None) -> float:
    """Of a pass without a graph, beside its logits: fp32's exponentials of a row; else a row's log-softmax and, still named, the row's before."""
    if wide == 4 and (ctx.at_least("trl", *ROWS_SINCE) if by_rows is None else by_rows):
        return wide / rows
    return wide * min(rows, 2) / rows


def _backward(wide: int, rows: int, whole_rows: bool | None = None) -> tuple[float, str]:
    """The largest moment of the backward pass, and what it is."""
    if wide == 4 and not whole_rows:
        return 16.0, "backward: logits, the picked entries' gradient, the rows' gradients and the same stacked, all fp32"
    if rows == 1:
        return 3.0 * wide, "rows' log-softmax kept; backward: log-softmax + two gradients"
    return max(wide + 2.0 * wide / rows, 2.0 * wide), "rows' log-softmax kept; backward: the rows' gradients, then stacked"
