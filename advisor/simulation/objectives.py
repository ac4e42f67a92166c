"""From a batch to the loss, as each trainer computes it: the model's own loss, DPO's pairs beside a reference, GRPO's clipped ratio.

Read in TRL 0.13.0, 0.15.0, 0.19.0, 0.28.0, 0.29.0, 1.0.0 and 1.7.0: dpo_trainer.py ``concatenated_forward``, ``get_batch_loss_metrics``,
``_compute_loss`` (since 0.29, which names the policy's outputs to the end); grpo_trainer.py ``_get_per_token_logps``, ``_compute_loss`` (divided by
the temperature since 0.16, in place since 1.0); utils.py ``selective_log_softmax`` (since 0.15: a row at a time).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from packaging.version import Version

from advisor.job import Job
from advisor.simulation import images, placing
from advisor.simulation.recorder import Recorder
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import torchtitan
from advisor.simulation.standins.trl import since

Forward = Callable[..., Any]
PAIRED = frozenset({"dpo"})
POLICY = frozenset({"grpo"})
ROWS_SINCE = Version("0.15")
DIVIDED_SINCE = Version("0.16")
NAMED_SINCE = Version("0.29")
IN_PLACE_SINCE = Version("1.0")
VIEWED_SINCE = Version("1.6")  # between the two the shifted logits were made contiguous: a copy


def sequences(job: Job) -> int:
    """Sequences of one forward pass: a pair is two."""
    return (job.batch.micro_batch or 1) * (2 if job.objective in PAIRED else 1)


def tokens_of(job: Job, device: str) -> torch.Tensor:
    """A full batch of token ids ``[sequences, seq_len]``."""
    return torch.zeros(sequences(job), job.batch.seq_len or 1, dtype=torch.long, device=device)


def inputs_of(recorder: Recorder, job: Job, model: Any) -> Any:
    """A batch as the data loader brings it: token ids, with images a dict of what the model is given."""
    if padding_free(job):
        return _one_row(recorder, job)
    if (sound := _heard(recorder, job, model)) is not None:
        return sound
    if images.expected(job) is None:
        tokens = tokens_of(job, recorder.device)
        recorder.see(tokens, "input")
        return {"input_ids": tokens, "labels": _classes(recorder, model, tokens)} if _classifies(model) else tokens
    given = images.batch(job, getattr(model, "module", model), recorder.device, sequences(job))
    for value in given.values():
        recorder.see(value, "input")
    return given


def _heard(recorder: Recorder, job: Job, model: Any) -> dict[str, torch.Tensor] | None:
    """Log-mel features ``[sequences, mel bins, frames]`` of 30 seconds and the text's ids, for a model that hears; None for others.

    fp32, as the feature extractor gives them; a model in 16 bit without autocast takes them in its own dtype only, so a script has cast them.
    """
    config: Any = next((module.config for module in model.modules() if hasattr(module, "config")), None)
    if getattr(config, "model_type", None) != "whisper":
        return None
    frames = 2 * config.max_source_positions  # of the two convolutions the second halves them
    weight = next(module.weight for name, module in model.named_modules() if name.endswith("encoder.conv1"))
    with Recorder.paused():
        dtype = torch.float32 if job.precision.mixed == "autocast" else weight.dtype
        given = {
            "input_features": torch.zeros(sequences(job), config.num_mel_bins, frames, dtype=dtype, device=recorder.device),
            "labels": tokens_of(job, recorder.device),
        }
    for value in given.values():
        recorder.see(value, "input")
    return given


def padding_free(job: Job) -> bool:
    """Whether a batch is one row of sequences on end, told apart by their positions."""
    return job.activations.sequence_packing == "padding-free"


def _one_row(recorder: Recorder, job: Job) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``position_ids`` ``[1, micro_batch x seq_len]`` (transformers data/data_collator.py ``DataCollatorWithFlattening``)."""
    with Recorder.paused():
        tokens = tokens_of(job, recorder.device).reshape(1, -1)
        given = {"input_ids": tokens, "labels": tokens.clone(), "position_ids": tokens.clone()}
    for value in given.values():
        recorder.see(value, "input")
    return given


def _classifies(model: Any) -> bool:
    return any("ForSequenceClassification" in type(module).__name__ for module in model.modules())


def _classes(recorder: Recorder, model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """A class for each sequence, or with one label a number (transformers loss/loss_utils.py ``ForSequenceClassificationLoss``)."""
    config = next(module.config for module in model.modules() if hasattr(module, "config"))
    with Recorder.paused():
        labels = torch.zeros(tokens.shape[0], dtype=torch.float32 if config.num_labels == 1 else torch.long, device=tokens.device)
    recorder.see(labels, "input")
    return labels


def loss_of(forward: Forward, tokens: Any, job: Job, model: Any, reference: Forward | None) -> tuple[Any, Any]:
    """The loss and the model's outputs, where the trainer's code still names them."""
    if job.objective in PAIRED:
        return _preference(forward, tokens, job, model, reference), None
    if job.objective in POLICY:
        return _clipped(forward, tokens, job), None
    if job.model.source == "torchtitan":
        return torchtitan.loss(forward, tokens, job), None
    given = tokens if isinstance(tokens, dict) else {"input_ids": tokens}
    outputs = forward(**(given if "labels" in given else {"labels": given["input_ids"], **given}))
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
        if chunked(job):
            _log_probs(forward, tokens)
        else:
            _picked(_cooled(_logits(forward, tokens)[:, :-1, :], job), tokens[:, 1:], job)


def _preference(forward: Forward, tokens: torch.Tensor, job: Job, model: Any, reference: Forward | None) -> torch.Tensor:
    policy, named = _sums(forward, tokens, job)
    if job.reference in ("none", "precomputed", None):
        before = torch.zeros_like(policy)
    else:
        with torch.no_grad(), _without_adapters(model) if reference is None else contextlib.nullcontext():
            before, _ = _sums(forward if reference is None else reference, tokens, job)
    del named
    ratio = policy - before
    half = ratio.shape[0] // 2
    return -functional.logsigmoid(0.1 * (ratio[:half] - ratio[half:])).mean()


def _sums(forward: Forward, tokens: torch.Tensor, job: Job) -> tuple[torch.Tensor, Any]:
    """Log-probability of each sequence, and the logits that the trainer's code still names; the whole logits are alive until they are reduced."""
    if chunked(job):
        return _log_probs(forward, tokens).sum(-1), None
    logits = _logits(forward, tokens)
    shifted = logits[:, :-1, :]
    if since(job, NAMED_SINCE) and not since(job, VIEWED_SINCE):
        shifted = shifted.contiguous()
    half = logits.shape[0] // 2
    picked = _picked(shifted, tokens[:, 1:], job)
    _ = logits[:half].detach().mean(), logits[half:].detach().mean()  # logged
    return picked.sum(-1), (logits, shifted) if since(job, NAMED_SINCE) else None


def _clipped(forward: Forward, tokens: torch.Tensor, job: Job) -> torch.Tensor:
    """``min(ratio A, clip(ratio) A)`` a token; logits divided by the temperature are a second copy where that is not done in place."""
    if chunked(job):
        picked = _log_probs(forward, tokens)
    else:
        logits = _cooled(_logits(forward, tokens)[:, :-1, :], job)
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


def chunked(job: Job) -> bool:
    """Whether log-probabilities come from hidden states without whole logits (TRL since 1.15)."""
    return job.activations.loss == "chunked"


def _log_probs(forward: Forward, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = forward(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens)["log_probs"]
    return found


def _cooled(logits: torch.Tensor, job: Job) -> torch.Tensor:
    """Logits over the temperature."""
    if not since(job, DIVIDED_SINCE):
        return logits
    return logits.div_(0.9) if since(job, IN_PLACE_SINCE) else logits / 0.9


def _picked(logits: torch.Tensor, labels: torch.Tensor, job: Job) -> torch.Tensor:
    """Log-probabilities of the labels ``[rows, tokens]``; a row's are named until the next row's are made."""
    if job.objective in PAIRED and not since(job, ROWS_SINCE):
        return torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    if logits.dtype == torch.float32 and since(job, ROWS_SINCE):
        chosen = torch.gather(logits, -1, labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    found = []
    for row, label in zip(logits, labels, strict=True):
        every = functional.log_softmax(row, dim=-1)
        found.append(every.gather(-1, label.unsqueeze(-1)).squeeze(-1))
    return torch.stack(found)


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
