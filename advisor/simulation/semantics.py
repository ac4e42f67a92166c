"""Makes the meta device behave as CUDA does: which attention kernel runs, dropout's mask, and values that Python asks for.

These are patches of the process they run in, so they belong in the probe's child process. Not a ``TorchFunctionMode``: the autograd
engine drops its stack, and a checkpoint would be recomputed with another attention than it ran with.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional

from advisor.simulation.patching import patched

META = "meta"
ATEN = torch.ops.aten


def attention_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, sm: int | None) -> str:
    """``flash``, ``efficient`` or ``math``: what CUDA would run. Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.

    Flash: 16-bit, no mask, one head size up to 256, sm80 or newer. Efficient: masks and fp32 too, head sizes divisible by 8, not bf16 before sm80.
    """
    half = query.dtype in (torch.bfloat16, torch.float16)
    modern = sm is None or sm >= 80
    same_heads = query.shape[-1] == value.shape[-1]
    if half and modern and mask is None and same_heads and query.shape[-1] <= 256:
        return "flash"
    if (query.dtype != torch.bfloat16 or modern) and query.shape[1] == key.shape[1]:
        return "efficient"
    return "math"


def _math_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    whole: torch.Tensor = ATEN._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return whole


def _attention(sm: int | None) -> Callable[..., torch.Tensor]:
    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        kernel = attention_kernel(query, key, value, attn_mask, sm=sm)
        dim = query.shape[-1]
        pad = -dim % 8
        if kernel == "math":
            return _math_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if pad and value.shape[-1] == dim:
            query, key, value = (functional.pad(t, (0, pad)) for t in (query, key, value))
        factor = scale or 1 / math.sqrt(dim)
        out: torch.Tensor
        if kernel == "flash":
            out = ATEN._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=factor)[0]
        else:
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            out = ATEN._scaled_dot_product_efficient_attention(query, key, value, bias, needs, dropout_p, is_causal, scale=factor)[0]
        return out[..., : value.shape[-1] if not pad else dim]

    return scaled_dot_product_attention


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A boolean mask becomes an additive one of the query's dtype, expanded over batch and heads (sdp_utils ``convert_boolean_attn_mask``)."""
    if mask.dtype == torch.bool:
        mask = torch.empty(mask.shape, dtype=query.dtype, device=mask.device)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's dropout keeps a one-byte mask (``native_dropout``); the meta and CPU path would keep float noise."""
    del inplace
    return input if not training or p == 0 else torch.native_dropout(input, p, True)[0]


def _answering(original: Callable[..., Any], answer: Any) -> Callable[[torch.Tensor], Any]:
    def ask(tensor: torch.Tensor) -> Any:
        if tensor.device.type != META:
            return original(tensor)
        return True if tensor.dtype == torch.bool else answer

    return ask


def _softmax(original: Callable[..., Any], fused: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """CUDA widens fp16 to fp32 inside the kernel (aten SoftMax.cpp, ``half_to_float``); bf16 gets an fp32 copy first, as elsewhere."""

    def call(input: torch.Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), None)
        if input.device.type == META and input.dtype == torch.float16 and dtype == torch.float32:
            return fused(input, dim, True)
        return original(input, dim, *args, **kwargs)

    return call


@contextlib.contextmanager
def cuda_semantics(*, sm: int | None = None, attention: str = "auto", packed: bool = False) -> Iterator[None]:
    """Patch this process while the context is open; ``attention="math"`` forces that kernel (what tests can compare with a CPU).

    ``packed``: what the positions say, which have no values here: whether a row holds several sequences.
    """
    patches: list[tuple[Any, str, Any]] = [
        (functional, "scaled_dot_product_attention", _math_attention if attention == "math" else _attention(sm)),
        (functional, "dropout", _dropout),
    ]
    for owner in (torch, torch.Tensor):
        patches.append((owner, "softmax", _softmax(owner.softmax, ATEN._softmax)))
        patches.append((owner, "log_softmax", _softmax(owner.log_softmax, ATEN._log_softmax)))
    for name, answer in (("__bool__", True), ("item", 1), ("__int__", 1), ("__float__", 1.0)):
        patches.append((torch.Tensor, name, _answering(getattr(torch.Tensor, name), answer)))
    flash = sys.modules.get("transformers.modeling_flash_attention_utils")
    if flash is not None and hasattr(flash, "_is_packed_sequence"):  # asks the positions' values
        patches.append((flash, "_is_packed_sequence", lambda *_, **__: packed))
    with patched(patches):
        yield
