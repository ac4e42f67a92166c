"""A fused or chunked loss is configured but bypassed (evaluation, unsupported model, patched twice)."""

from __future__ import annotations

import re

from advisor.deviation import ineffective
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import fingerprint
from advisor.rules.rule import Example, Mark, Rule
from advisor.rules.samples import job, oom, trace
from advisor.run import Run

NO_LOGITS = ("fused-linear", "chunked")


def _applies(run: Run, _evidence: Evidence) -> str | None:
    loss = run.job.activations.loss
    return "no fused or chunked loss is configured" if loss is not None and loss not in NO_LOGITS else None


def _request(run: Run, evidence: Evidence) -> str | None:
    if run.job.activations.loss not in NO_LOGITS:
        return None
    found = fingerprint.match(run, evidence, "logits")
    return f"{found}, which the configured loss never makes" if found else None


_CHUNKED = pattern(r"chunked?[\w ]{0,6}(?:loss|ce\b|cross[_ ]?entropy)|linear_cross_entropy|fused[_ -]linear|cut_cross_entropy|\bliger", re.IGNORECASE)


def _named(_run: Run, evidence: Evidence) -> str | None:
    """A chunked or fused loss is named beside it."""
    return "" if evidence.failure is not None and any(_CHUNKED.search(line.text) for line in evidence.lines) else None


_ASKED_FOR = pattern(r"liger|fused_linear|cut_cross_entropy", re.IGNORECASE)


def _only_newest(run: Run, evidence: Evidence) -> str | None:
    """The loss is what the newest version does by default, and no version was read: an older one simply makes whole logits."""
    if any(_ASKED_FOR.search(key) and str(value).lower() == "true" for _, key, value in evidence.seen_keys):
        return None  # a switch that is written is no default
    fact, versions = run.facts.get("activations.loss"), run.job.framework.versions or {}
    unknown = run.job.framework.name is not None and not ({"trl", "transformers", "torchtune", "litgpt"} & set(versions))
    return "that loss is the default of newer versions only, and no version is known" if fact is not None and fact.kind == "default" and unknown else None


def _fault(run: Run, _evidence: Evidence) -> Run | None:
    return run.deviating(ineffective("activations.loss", cause="loss-fallback")) if run.job.activations.loss in NO_LOGITS else None


RULE = Rule(
    id="loss-fallback",
    tier="fallback",
    title="The fused loss is configured but not used: whole logits are made",
    cleared="The configured loss makes no whole logits, and none are seen.",
    prior=-1.2,
    applies=_applies,
    marks=(
        Mark("loss-fallback-request", 4.0, "whole logits", "a fused linear cross entropy holds one chunk of logits", when=_request),
        Mark(
            "loss-fallback-frame",
            3.5,
            "the unfused loss is running",
            "transformers loss_utils.ForCausalLMLoss, lm_head forward; torch cross_entropy",
            pattern=r"logits\s*=\s*logits\.float\(\)|ForCausalLMLoss|loss_utils\.py|self\.lm_head\(|F\.cross_entropy|functional\.py:cross_entropy",
            on="frame",
            when=lambda run, _: "" if run.job.activations.loss in NO_LOGITS else None,
        ),
        Mark(
            "loss-fallback-whole",
            4.0,
            "tensors of tokens by vocabulary are alive, where a chunked or fused loss is named",
            "torchtitan ChunkedCELoss, Liger's and apple's linear cross entropies: each holds the logits of one chunk at a time",
            pattern=r"\[\s*[\w*×, ]{1,40},\s*(vocab\w*|V|n_vocab)\s*\]",
            on="line",
            when=_named,
        ),
        Mark(
            "loss-fallback-unsupported",
            4.0,
            "the kernel library says that it does not know the model, or could not be loaded",
            "liger_kernel/transformers/monkey_patch.py: 'There are currently no Liger kernels supported for model type'",
            pattern=(
                r"no Liger kernels supported|\bfused_linear_cross_entropy\b.{0,40}\b(?:not (?:supported|applied|available)|skipp\w+|ignored|disabled)|"
                r"[Ll]iger.{0,60}(not (installed|available|supported)|disabled|failed)|"
                r"UNSLOTH_RETURN_LOGITS\s*=?\s*['\"]?\s*1|cut_cross_entropy.{0,60}(not|fail)"
            ),
        ),
        Mark(
            "loss-fallback-newest-default",
            -3.0,
            "a default of newer versions",
            "TRL SFTConfig.loss_type and its like changed between versions",
            when=_only_newest,
        ),
    ),
    fault=_fault,
    remedies=("restore-fused-loss", "fused-linear-loss", "smaller-micro-batch"),
    fires=(
        Example(
            "whole logits beside Liger's loss",
            text="use_liger_kernel with fused_linear_cross_entropy\nthe snapshot shows 6 blocks of 3.71 GiB of shape [batch * seq, vocab] at the peak\n"
            "torch.OutOfMemoryError: CUDA out of memory.\n",
        ),
        Example(
            "logits in spite of a fused loss",
            job=job(batch="{micro_batch: 6, seq_len: 8192}", activations="{loss: fused-linear, checkpointing: full}"),
            text=trace("transformers/loss/loss_utils.py|ForCausalLMLoss|logits = logits.float()") + oom("23.48 GiB", allocated=60.0, free=17.0),
        ),
    ),
    quiet=(Example("full loss", job=job(activations="{loss: full-fp32}"), text=oom("512.00 MiB", allocated=76.5)),),
)
