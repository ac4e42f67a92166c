"""Fused (Triton) kernels by what they allocate and keep: cross entropy, fused linear cross entropy, norms, SwiGLU, rotary embeddings.

Read in Liger-Kernel ops/cross_entropy.py, ops/fused_linear_cross_entropy.py, ops/rms_norm.py, ops/layer_norm.py, ops/swiglu.py, ops/rope.py
(0.4 and 0.5); unsloth's kernels, which fms-acceleration carries, keep the same: input, row statistics; gradients are written over the
gradient that comes in.

Not among them: unsloth's fused adapter projections (``LoRA_QKV``, fms-acceleration's fused_ops/unsloth_lora), which write the input's gradient over the
saved input: one hidden state a token less, at most 1.5 % in public runs with them.
"""

from __future__ import annotations

from typing import Any

import torch

FUSE_ABOVE = 65_536  # MAX_FUSED_SIZE: elements of a row that one program handles


class CrossEntropy(torch.autograd.Function):
    """Losses and row statistics; the gradient takes the logits' place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``logits`` [rows, vocab]: the mean loss, a scalar."""
        del target
        losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
        statistics = torch.empty_like(losses)
        ctx.save_for_backward(logits, statistics)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient in the logits' own storage."""
        del grad
        logits, _ = ctx.saved_tensors
        return logits.detach(), None


class FusedLinearCrossEntropy(torch.autograd.Function):
    """Head and loss together, a chunk of rows at a time; gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``hidden`` [rows, width], ``weight`` [vocab, width]: the mean loss."""
        rows, width = hidden.shape
        vocab = weight.shape[0]
        factor = -(-vocab // width)
        chunk = 1 << max(0, -(-rows // factor) - 1).bit_length()  # next power of two of rows / (vocab / width)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(rows, dtype=torch.float32, device=hidden.device)
        for start in range(0, rows, chunk):
            part = hidden[start : start + chunk]
            logits = part @ weight.t()
            grad_hidden[start : start + chunk] = logits @ weight
            if grad_weight is not None:
                torch.addmm(grad_weight, logits.t(), part, out=grad_weight)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """What the forward pass made."""
        del grad
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden, grad_weight


class Norm(torch.autograd.Function):
    """RMS or layer norm: keeps its input and row statistics; the gradient overwrites the one that comes in."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Normalised, in the input's dtype."""
        ctx.save_for_backward(x, weight, torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Written over the incoming gradient; the weight's gradient from one partial sum a multiprocessor."""
        _, weight, _ = ctx.saved_tensors
        partial = torch.empty(MULTIPROCESSORS, weight.shape[0], dtype=torch.float32, device=weight.device) if weight.requires_grad else None
        return grad, None if partial is None else partial.sum(dim=0).to(weight.dtype)


MULTIPROCESSORS = 108  # of an A100; partial sums of the weight's gradient are a row each


class SwiGlu(torch.autograd.Function):
    """``silu(gate) * up``: keeps both; their gradients overwrite them."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The product, a new tensor."""
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """In the saved tensors' own storage."""
        del grad
        gate, up = ctx.saved_tensors
        return gate.detach(), up.detach()


class Rope(torch.autograd.Function):
    """Rotary embedding of queries and keys in place."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[batch, heads, seq, head_dim]``, in their own storage: the layout behind is ``[batch, seq, heads, head_dim]``."""
        ctx.save_for_backward(cos, sin)
        return q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(1, 2).contiguous().transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """In place; gradients that are laid out otherwise are copied."""
        del ctx
        return dq.transpose(1, 2).contiguous().transpose(1, 2), dk.transpose(1, 2).contiguous().transpose(1, 2), None, None


def apply(function: Any, *args: Any) -> Any:
    """Run one of these kernels (torch's ``apply`` has no types)."""
    return function.apply(*args)
