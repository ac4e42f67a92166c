"""The head and the loss: logits are the widest activation of all."""

from __future__ import annotations

from advisor.run import Run
from advisor.techniques.conditions import LIGER, LIGER_AS_ONE, LIGER_PARTS, MEGATRON, first, framework_lacks, older
from advisor.techniques.fused_preference import has_loss_key, no_fused_preference
from advisor.techniques.technique import NotApplicable, technique

CHUNKED = frozenset({"torchtune", "trl", "axolotl", "deepspeed", "arctic", "custom"})  # with a setting (deepspeed: its tiled loss)
FUSED_LINEAR = LIGER | {"megatron-bridge"}  # torchtune's LinearCrossEntropyLoss works in chunks: chunked-loss


def whole_vocabulary(run: Run) -> str | None:
    """Why the head does not make one wide matrix of logits that a fused loss could avoid."""
    architecture, p = run.architecture, run.job.parallel
    if architecture is not None and architecture.classes is not None:
        return "the model classifies into few classes: its logits are small"
    if architecture is not None and architecture.encoder_decoder:
        return "the fused loss is made for causal language models"
    if (p.tensor or 1) > 1:
        return "with a head split over tensor ranks the vocabulary-parallel loss is the one that fits"
    return None


@technique("fused-linear-loss", tier="batch")
def fused_linear_loss(run: Run) -> Run | NotApplicable:
    """Head product and cross entropy in one kernel, a slice of tokens at a time: the logits are never there as a whole."""
    if run.job.activations.loss == "fused-linear":
        return NotApplicable("the loss is fused with the head already")
    reason = first(framework_lacks(run, FUSED_LINEAR, "a loss fused with the head"), no_fused_preference(run), whole_vocabulary(run))
    if reason:
        return NotApplicable(reason)
    parts = {"kernels": LIGER_PARTS} if run.job.framework.name in LIGER_AS_ONE and not has_loss_key(run) else {}
    return run.but(activations={"loss": "fused-linear", **parts}, framework={"keeps_outputs": False})


def _trl_lacks(run: Run) -> str | None:
    """SFTConfig takes ``chunked_nll`` from TRL 1.4 on (sft_config.py; not in 1.3.0); other trainers of TRL have no key for it."""
    if run.job.framework.name != "trl":
        return None
    if run.job.objective not in (None, "sft"):
        return f"TRL has no setting for it in {run.job.objective}: its later versions work in slices by themselves"
    return older(run, "trl", (1, 4))


@technique("chunked-loss", tier="batch")
def chunked_loss(run: Run) -> Run | NotApplicable:
    """Head product and loss for a few slices of the tokens in turn."""
    if run.job.activations.loss in ("chunked", "fused-linear"):
        return NotApplicable("the loss works in slices already")
    if run.job.framework.name in MEGATRON - {"nemo"}:
        return NotApplicable(f"{run.job.framework.name} has the vocabulary-parallel loss instead")
    reason = first(framework_lacks(run, CHUNKED, "a chunked loss"), _trl_lacks(run), whole_vocabulary(run))
    return NotApplicable(reason) if reason else run.but(activations={"loss": "chunked"}, framework={"keeps_outputs": False})
