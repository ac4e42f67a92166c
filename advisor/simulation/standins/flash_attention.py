"""The flash_attn package on the meta device: the kernel that torch carries too, in the package's layout ``[batch, seq, heads, head_dim]``.

Read: flash-attention flash_attn/flash_attn_interface.py (``flash_attn_func`` keeps q, k, v, out, softmax_lse, rng_state), 2.7.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional

ATEN = torch.ops.aten


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    return_attn_probs: bool = False, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Attention without a score matrix; heads of k and v may be fewer."""
    del window_size, softcap, alibi_slopes, deterministic, return_attn_probs  # nothing of the size of the inputs depends on them
    dim = q.shape[-1]
    if dim % 8:
        q, k, v = (functional.pad(t, (0, -dim % 8)) for t in (q, k, v))
    scale = softmax_scale or 1 / math.sqrt(dim)
    out: torch.Tensor = ATEN._scaled_dot_product_flash_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p, causal, False, scale=scale
    )[0]
    return out.transpose(1, 2)[..., :dim]


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Packed sequences ``[tokens, heads, head_dim]``; transformers asks this signature what the kernel can do."""
    del window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    out: torch.Tensor = ATEN._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, causal, False, scale=softmax_scale
    )[0]
    return out


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows by index (bert_padding)."""
    return tensor[indices]


def pad_input(*_: Any) -> torch.Tensor:
    """Padding is not simulated: batches are full."""
    raise NotImplementedError("the probe runs full batches, which are not unpadded")


unpad_input = pad_input


def flash_attn_with_kvcache(*_: Any, **__: Any) -> torch.Tensor:
    """Decoding is not simulated."""
    raise NotImplementedError("the probe runs training steps, which do not decode")
