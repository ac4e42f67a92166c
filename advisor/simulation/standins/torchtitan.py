"""torchtitan's Llama 3 by the operators that it runs, its loss, and which modules it takes as units.

Read: torchtitan 0.1.0 and 0.2.0 models/llama3/model/model.py (rotary embedding in complex numbers, keys and values repeated for every query
head, ``nn.RMSNorm``), components/loss.py, train.py (logits are let go of before the backward pass).
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as functional
from packaging.version import InvalidVersion, Version
from torch import nn

from advisor.architecture import Architecture
from advisor.job import Job
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import fused


class Attention(nn.Module):
    """Grouped queries; keys and values are repeated, so that any kernel takes them."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.repeats, self.head_dim = heads // kv_heads, head_dim
        self.wq = nn.Linear(hidden, heads * head_dim, bias=False)
        self.wk, self.wv = (nn.Linear(hidden, kv_heads * head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        query, key, value = (product(x) for product in (self.wq, self.wk, self.wv))
        query, key, value = (t.view(batch, seq, -1, self.head_dim) for t in (query, key, value))
        complexes = [torch.view_as_complex(t.float().reshape(batch, seq, -1, self.head_dim // 2, 2)) for t in (query, key)]
        turn = rotation[:seq].view(1, seq, 1, self.head_dim // 2)
        turned = [torch.view_as_real(t * turn).flatten(3) for t in complexes]
        query, key = (t.type_as(x) for t in turned)
        del complexes, turned
        keys, values = (self._repeated(t) for t in (key, value))
        out = functional.scaled_dot_product_attention(query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True)
        out = out.transpose(1, 2).contiguous().view(batch, seq, -1)
        whole: torch.Tensor = self.wo(out)
        return whole

    def _repeated(self, t: torch.Tensor) -> torch.Tensor:
        batch, seq, heads, dim = t.shape
        return t if self.repeats == 1 else t.unsqueeze(3).expand(batch, seq, heads, self.repeats, dim).reshape(batch, seq, heads * self.repeats, dim)


class FeedForward(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, seq, hidden]."""
        out: torch.Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """Norm before each half."""

    def __init__(self, hidden: int, inner: int, attention: Attention) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, FeedForward(hidden, inner)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, seq, hidden]."""
        middle = x + self.attention(self.attention_norm(x), rotation)
        out: torch.Tensor = middle + self.feed_forward(self.ffn_norm(middle))
        return out


class Transformer(nn.Module):
    """Embedding, blocks by name, norm and head: logits ``[batch, seq, vocab]``. It answers what transformers' models are asked for."""

    _no_split_modules = ("Block",)

    def __init__(self, architecture: Architecture, length: int) -> None:
        super().__init__()
        kinds = [block for block in architecture.blocks for _ in range(block.count)]
        hidden = architecture.hidden
        self.tok_embeddings = nn.Embedding(architecture.vocab, hidden)
        self.register_buffer("rotation", torch.zeros(length, kinds[0].head_dim // 2, dtype=torch.complex64))
        self.layers = nn.ModuleDict({str(n): Block(hidden, b.mlp_width, Attention(hidden, b.heads, b.kv_heads, b.head_dim)) for n, b in enumerate(kinds)})
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.output = nn.Linear(hidden, architecture.vocab, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        """The first layer."""
        return self.tok_embeddings

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.output

    def get_decoder(self) -> nn.Module:
        """All but the head."""
        return self

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens`` [batch, seq]."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.rotation)
        out: torch.Tensor = self.output(self.norm(x))
        return out


def build(architecture: Architecture, job: Job, device: str, dtype: torch.dtype) -> Transformer:
    """The model on a device.

    Raises:
        CannotProbe: anything but a dense Llama.
    """
    if architecture.model_type not in ("llama", "llama3") or any(b.experts or not b.gated for b in architecture.blocks):
        raise CannotProbe(f"of torchtitan's models the probe runs Llama 3, not {architecture.model_type}: the estimate stands in")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Transformer(architecture, job.batch.seq_len or 1).train()
    finally:
        torch.set_default_dtype(before)


def _since(job: Job, torchtitan: str, torch_of_then: str) -> bool:
    """Whether the job's torchtitan, or a torch that only a newer one runs on, is of a version; False where neither is known."""
    for package, first in (("torchtitan", torchtitan), ("torch", torch_of_then)):
        said = (job.framework.versions or {}).get(package)
        with contextlib.suppress(InvalidVersion):
            if said is not None and Version(Version(str(said)).base_version) >= Version(first):
                return True
    return False


def outer_units(job: Job) -> bool:
    """Embedding and head are units of their own (0.2, July 2025); before, they were the root's, and the last block stayed gathered."""
    return _since(job, "0.2", "2.9")


def compiled_loss(job: Job) -> bool:
    """The loss is compiled with the blocks: until December 2024 and again from April 2025 (commits e8977b0, bbb1b61): 0.1, or torch 2.8, at least."""
    return bool(job.activations.compile) and _since(job, "0.1", "2.8")


def loss(forward: Any, tokens: torch.Tensor, job: Job) -> torch.Tensor:
    """Cross entropy over every position; the logits end with this call."""
    logits = forward(tokens)
    flat = logits.flatten(0, 1)
    if compiled_loss(job):
        mean: torch.Tensor = fused.apply(Compiled, flat, tokens.flatten())
        return mean
    return functional.cross_entropy(flat.float(), tokens.flatten())


class Compiled(torch.autograd.Function):
    """The loss as inductor fuses it: fp32 values stay in the kernels; logits and row statistics are kept, the gradient is of the logits' dtype."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``logits`` [rows, vocab]: the mean loss."""
        del target
        largest, total = (torch.empty(logits.shape[0], 1, dtype=torch.float32, device=logits.device) for _ in range(2))
        ctx.save_for_backward(logits, largest, total)
        return total.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """A new gradient beside the logits."""
        del grad
        logits, _, _ = ctx.saved_tensors
        return torch.empty_like(logits), None
