"""From a batch to the loss, as each trainer computes it: the model's own loss, DPO's pairs beside a reference, GRPO's clipped ratio.

Read in TRL 0.13.0, 0.15.0, 0.19.0 and 1.7.0: dpo_trainer.py ``concatenated_forward``, ``get_batch_loss_metrics``, ``_compute_loss``;
grpo_trainer.py ``_get_per_token_logps``, ``_compute_loss``; utils.py ``selective_log_softmax`` (since 0.15: a row at a time).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from packaging.version import InvalidVersion, Version

from advisor.job import Job
from advisor.simulation import placing
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe

Forward = Callable[..., Any]
PAIRED = frozenset({"dpo"})
POLICY = frozenset({"grpo"})
ROWS_SINCE = Version("0.15")


def sequences(job: Job) -> int:
    """Sequences of one forward pass: a pair is two."""
    return (job.batch.micro_batch or 1) * (2 if job.objective in PAIRED else 1)


def tokens_of(job: Job, device: str) -> torch.Tensor:
    """A full batch of token ids ``[sequences, seq_len]``."""
    return torch.zeros(sequences(job), job.batch.seq_len or 1, dtype=torch.long, device=device)


def loss_of(forward: Forward, tokens: torch.Tensor, job: Job, model: Any, reference: Forward | None) -> tuple[Any, Any]:
    """The loss and the model's outputs, where the trainer's code still names them."""
    if job.objective in PAIRED:
        return _preference(forward, tokens, job, model, reference), None
    if job.objective in POLICY:
        return _clipped(forward, tokens, job), None
    outputs = forward(input_ids=tokens, labels=tokens)
    loss: torch.Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
    return loss, outputs


def score(recorder: Recorder, forward: Forward, job: Job, model: Any) -> None:
    """GRPO's passes without a graph before the update: what the reference, and the policy itself, give the generated tokens."""
    rows = job.rollout.logprob_micro_batch if job.rollout is not None else None
    if job.objective not in POLICY or (job.reference != "adapter-off" and rows is None):
        return
    recorder.phase, recorder.moment = "rollout", "rollout.log-probs"
    tokens = torch.zeros(rows or sequences(job), job.batch.seq_len or 1, dtype=torch.long, device=recorder.device)
    recorder.see(tokens, "input")
    with torch.no_grad(), _without_adapters(model) if job.reference == "adapter-off" else contextlib.nullcontext():
        _picked(_logits(forward, tokens)[:, :-1, :] / 0.9, tokens[:, 1:], job)


def _preference(forward: Forward, tokens: torch.Tensor, job: Job, model: Any, reference: Forward | None) -> torch.Tensor:
    policy = _sums(forward, tokens, job)
    if job.reference in ("none", "precomputed", None):
        before = torch.zeros_like(policy)
    else:
        with torch.no_grad(), _without_adapters(model) if reference is None else contextlib.nullcontext():
            before = _sums(forward if reference is None else reference, tokens, job)
    ratio = policy - before
    half = ratio.shape[0] // 2
    return -functional.logsigmoid(0.1 * (ratio[:half] - ratio[half:])).mean()


def _sums(forward: Forward, tokens: torch.Tensor, job: Job) -> torch.Tensor:
    """Log-probability of each sequence; the whole logits are alive until they are reduced."""
    logits = _logits(forward, tokens)
    half = logits.shape[0] // 2
    picked = _picked(logits[:, :-1, :], tokens[:, 1:], job)
    _ = logits[:half].detach().mean(), logits[half:].detach().mean()  # logged
    return picked.sum(-1)


def _clipped(forward: Forward, tokens: torch.Tensor, job: Job) -> torch.Tensor:
    """``min(ratio A, clip(ratio) A)`` a token; the logits divided by the temperature are a second copy."""
    logits = _logits(forward, tokens)[:, :-1, :] / 0.9
    picked = _picked(logits, tokens[:, 1:], job)
    del logits
    ratio = torch.exp(picked - picked.detach())
    clipped = torch.clamp(ratio, 0.8, 1.2)
    advantages = torch.ones(picked.shape[0], 1, dtype=picked.dtype, device=picked.device)
    return -torch.min(ratio * advantages, clipped * advantages).mean()


def _logits(forward: Forward, tokens: torch.Tensor) -> torch.Tensor:
    outputs = forward(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    logits: torch.Tensor = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
    return logits


def _picked(logits: torch.Tensor, labels: torch.Tensor, job: Job) -> torch.Tensor:
    """Log-probabilities of the labels ``[rows, tokens]``."""
    if not _by_rows(job):
        return torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    if logits.dtype == torch.float32:
        chosen = torch.gather(logits, -1, labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    rows = [functional.log_softmax(row, dim=-1).gather(-1, label.unsqueeze(-1)).squeeze(-1) for row, label in zip(logits, labels, strict=True)]
    return torch.stack(rows)


def _by_rows(job: Job) -> bool:
    try:
        return Version(str((job.framework.versions or {}).get("trl", "1"))) >= ROWS_SINCE
    except InvalidVersion:
        return True


def _without_adapters(model: Any) -> Any:
    if not hasattr(model, "disable_adapter"):
        raise CannotProbe("the reference is the model without its adapters, and this model has none: give reference: copy or none")
    return model.disable_adapter()


def reference_of(model: torch.nn.Module, job: Job) -> torch.nn.Module | None:
    """A frozen copy in evaluation mode beside the policy, where the job holds one (trl models/utils.py ``create_reference_model``)."""
    if job.reference != "copy":
        return None
    import copy

    if job.method.kind not in (None, "full", "freeze"):
        raise CannotProbe("the probe has no copy of the base beside adapters: the estimate stands in")
    return copy.deepcopy(model).eval().requires_grad_(False)


def label_reference(recorder: Recorder, reference: torch.nn.Module | None) -> None:
    """The copy's weights by name."""
    if reference is None:
        return
    for name, tensor in (*reference.named_parameters(), *reference.named_buffers()):
        recorder.see(tensor, "reference")
        recorder.label(tensor, "reference", placing.plain(name))
