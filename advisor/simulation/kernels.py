"""Memory that fused kernels take without passing the dispatcher, by kernel, from their sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ATEN = torch.ops.aten


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def flash_backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, _value: torch.Tensor, out: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    """Temporaries of flash attention's backward, bytes. Tensors are ``[batch, heads, seq, head_dim]``.

    ``softmax_d`` fp32 [B, H, seq to 128], ``dq_accum`` fp32 [B, seq to 128, H, head_dim to 32 or 64], contiguous copies of a strided
    grad_out and out, and with grouped queries dK and dV for every query head. Source: flash-attention csrc/flash_attn/flash_api.cpp ``mha_bwd``.
    """
    batch, heads, seq, dim = query.shape
    size = query.element_size()
    found = [batch * heads * _up(seq, 128) * 4, batch * _up(seq, 128) * heads * _up(dim, 32 if dim <= 128 else 64) * 4]
    found += [t.numel() * size for t in (grad_out, out) if not t.transpose(1, 2).is_contiguous()]
    if key.shape[1] != heads:
        found += [batch * key.shape[2] * heads * dim * size] * 2
    return found


def flash_varlen_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, _value: torch.Tensor, out: torch.Tensor, _lse: torch.Tensor, begins: torch.Tensor | None,
    *_: Any, **__: Any,
) -> list[int]:  # fmt: skip
    """The same of sequences on end, ``[tokens, heads, head_dim]``, each rounded up to 128 rows (flash_api.cpp ``mha_varlen_bwd``)."""
    if begins is None:
        return flash_backward(*(t.transpose(1, 2) for t in (grad_out, query, key, _value, out)))
    tokens, heads, dim = query.shape
    size = query.element_size()
    rows = tokens + 128 * (begins.numel() - 1)
    found = [heads * rows * 4, rows * heads * _up(dim, 32 if dim <= 128 else 64) * 4]
    found += [t.numel() * size for t in (grad_out, out) if not t.is_contiguous()]
    if key.shape[1] != heads:
        found += [key.shape[0] * heads * dim * size] * 2
    return found


def logsumexp(tensor: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    """The exponentials that it sums, as large as its input. Source: torch aten/src/ATen/native/ReduceOps.cpp ``logsumexp_out_impl``."""
    return [tensor.numel() * tensor.element_size()]


def layer_norm_backward(grad_out: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    """A contiguous copy of a strided gradient. Source: torch aten/src/ATen/native/cuda/layer_norm_kernel.cu, ``grad.expect_contiguous()``."""
    return [] if grad_out.is_contiguous() else [grad_out.numel() * grad_out.element_size()]


TEMPORARIES: dict[Any, Callable[..., list[int]]] = {
    ATEN._scaled_dot_product_flash_attention_backward.default: flash_backward,
    ATEN._flash_attention_backward.default: flash_varlen_backward,
    ATEN.logsumexp.default: logsumexp,
    ATEN.native_layer_norm_backward.default: layer_norm_backward,
}

GROUP_BY_GROUP = frozenset({torch.float32, torch.float16})
GROUPED = frozenset({ATEN._grouped_mm.default} if hasattr(ATEN, "_grouped_mm") else ())


def grouped_product(function: Any, first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Grouped products of other dtypes than bf16: meta's kernel refuses them, CUDA's writes group by group into its result.

    Source: torch 2.9 and 2.13 aten/src/ATen/native/cuda/GroupedBlas.cpp ``_grouped_mm_cuda``, GroupedMMUtils.h ``_grouped_mm_fallback``.
    """
    narrow = [torch.empty_strided(t.shape, t.stride(), dtype=torch.bfloat16, device=t.device) for t in (first, second)]
    shape: torch.Tensor = function(*narrow, *args, **kwargs)
    return torch.empty_strided(shape.shape, shape.stride(), dtype=first.dtype, device=first.device)


CONTIGUOUS_FIRST = frozenset({ATEN.native_layer_norm_backward.default})  # their results are contiguous; meta's follow a strided gradient

CUBLAS_WORKSPACE = {90: 33_554_432}  # bytes for each handle and stream; aten/src/ATen/cuda/CublasHandlePool.cpp
CUBLAS_WORKSPACE_BEFORE_HOPPER = 8_519_680  # 2 * 4096 KiB + 16 * 8 KiB ... as allocated: 8,519,680 B (the same file)


def cublas_workspace(sm: int | None) -> int:
    """Bytes of one cuBLAS workspace: 32 MiB on sm90 and newer, 8.125 MiB before."""
    return CUBLAS_WORKSPACE[90] if sm is not None and sm >= 90 else CUBLAS_WORKSPACE_BEFORE_HOPPER
