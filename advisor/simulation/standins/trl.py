"""TRL's fused head: log-probabilities of the labels from the hidden states, a tile of logits at a time, made anew in the backward pass.

Read in TRL 1.16: kernels/chunked_logprob.py ``ChunkedLogProbFunction`` (its Triton kernels work on the tile and on row statistics and allocate
nothing), trainer/utils.py ``add_fused_lm_head``. Products that widen 16-bit inputs into fp32 sums (``torch.addmm(out_dtype=)``) make no copies.
Before 1.15 SFT took the loss of 256 tokens at a time, each chunk checkpointed, on an fp32 copy of the head (1.7.0 and 1.14.0, trainer/sft_trainer.py
``_chunk``, ``_chunked_cross_entropy_loss``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from packaging.version import InvalidVersion, Version
from torch.utils.checkpoint import checkpoint

from advisor.job import Job

ROWS, COLUMNS = 4096, 32768  # TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE
TILED_SINCE = Version("1.15")
TOKENS_BEFORE = 256  # _CHUNKED_LM_HEAD_CHUNK_SIZE
STATISTICS = 7  # fp32 rows: maximum, sums of exponentials, of their squares, of products, of logits, the maximum before the target, the target's


def since(job: Job, first: Version) -> bool:
    """Whether the job's TRL is of a version or newer; the newest is assumed where it is not known."""
    try:
        return Version(str((job.framework.versions or {}).get("trl", "99"))) >= first
    except InvalidVersion:
        return True


def head_of(model: Any, job: Job) -> Callable[..., dict[str, Any]]:
    """The forward pass that this version puts in the place of the model's own."""
    return fused_head(model) if since(job, TILED_SINCE) else checkpointed_head(model)


class ChunkedLogProbs(torch.autograd.Function):
    """Log-probabilities ``[rows]`` in fp32; keeps the hidden states and row statistics."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """``hidden`` [rows, width], ``weight`` [vocab, width], ``targets`` [rows]."""
        rows, vocab, device = hidden.shape[0], weight.shape[0], hidden.device
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled() else hidden.dtype
        statistics = [torch.empty(rows, dtype=torch.float32, device=device) for _ in range(STATISTICS)]
        tile = torch.empty(min(rows, ROWS), COLUMNS, dtype=dtype, device=device)
        for start in range(0, rows, ROWS):
            part = hidden[start : start + ROWS].to(dtype)
            for column in range(0, vocab, COLUMNS):
                _ = weight[column : column + COLUMNS].to(dtype)
            del part
        logs = statistics[0] + torch.log(statistics[1])
        picked: torch.Tensor = statistics[2] - logs
        ctx.save_for_backward(hidden, weight, targets, logs)
        ctx.dtype = dtype
        del tile
        return picked

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Both gradients summed in fp32, then cast to what they belong to; the sums are there until the function returns."""
        hidden, weight, _, _ = ctx.saved_tensors
        wide = {"dtype": torch.float32, "device": hidden.device}
        grad_hidden = torch.zeros(hidden.shape, **wide) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros(weight.shape, **wide) if ctx.needs_input_grad[1] else None
        tile = torch.empty(min(hidden.shape[0], ROWS), COLUMNS, dtype=ctx.dtype, device=hidden.device)
        given = grad.float().contiguous()
        for start in range(0, hidden.shape[0], ROWS):
            part = hidden[start : start + ROWS].to(ctx.dtype)
            for column in range(0, weight.shape[0], COLUMNS):
                _ = weight[column : column + COLUMNS].to(ctx.dtype)
            del part
        found = (None if g is None else g.to(of.dtype) for g, of in ((grad_hidden, hidden), (grad_weight, weight)))
        result = (*found, None)
        del tile, given
        return result


def fused_head(model: Any) -> Callable[..., dict[str, Any]]:
    """The causal model's forward pass with the head's product in tiles: ``loss`` and ``log_probs`` [sequences, tokens - 1]."""
    head = model.get_output_embeddings()
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model

    def forward(input_ids: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        hidden = decoder(input_ids=input_ids, **{**kwargs, "use_cache": False})[0][:, :-1]
        shifted = labels[:, 1:]
        mask = shifted != -100
        weight = head.weight.full_tensor() if hasattr(head.weight, "full_tensor") else head.weight
        picked: torch.Tensor = _apply(ChunkedLogProbs, _where(hidden), weight, _where(shifted))
        per_token = picked.new_zeros(mask.shape).masked_scatter(mask, picked)
        return {"loss": -per_token.sum() / mask.sum().clamp(min=1), "log_probs": per_token}

    return forward


def checkpointed_head(model: Any) -> Callable[..., dict[str, Any]]:
    """The same of TRL before 1.15: only ``loss``."""
    head = model.get_output_embeddings()
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model

    def forward(input_ids: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        states = decoder(input_ids=input_ids, **{**kwargs, "use_cache": False})[0]
        weight = head.weight.full_tensor() if hasattr(head.weight, "full_tensor") else head.weight
        hidden = states[..., :-1, :].reshape(-1, states.shape[-1])
        targets = labels[..., 1:].reshape(-1)
        hidden, targets = _where(hidden.unsqueeze(0)), _where(targets.unsqueeze(0))
        loss, *counted = (hidden.new_zeros((), dtype=torch.float32) for _ in range(3))
        for start in range(0, hidden.shape[0], TOKENS_BEFORE):
            part = slice(start, start + TOKENS_BEFORE)
            found = checkpoint(_chunk, hidden[part], weight, targets[part], use_reentrant=False)
            loss, counted = loss + found[0], [before + now for before, now in zip(counted, found[1:], strict=True)]
        return {"loss": loss / hidden.shape[0], "counted": counted}

    return forward


def _chunk(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = hidden.float() @ weight.float().t()
    logs = functional.log_softmax(logits, dim=-1)
    loss = functional.nll_loss(logs, targets, reduction="sum")
    correct = (logits.argmax(dim=-1) == targets).sum().float()
    return loss, correct, -(logs.exp() * logs).sum(dim=-1).sum()


def _where(values: torch.Tensor) -> torch.Tensor:
    """``values[mask]`` of a full batch, ``[sequences x tokens, ...]``: a copy; which entries is asked of the mask's values, which are not here."""
    rows, columns = (torch.empty(values.shape[0] * values.shape[1], dtype=torch.long, device=values.device) for _ in range(2))
    return values[rows, columns]


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)
