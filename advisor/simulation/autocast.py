"""Autocast on the meta device: ``torch.autocast`` knows no meta tensors, so its two lists are applied by patching the functions models call.

To 16 bit: linear, matmul, bmm and attention; weights that need gradients are cast once a forward pass and kept (autocast's cache). To fp32:
layer and RMS norm functions, cross entropy, softmax. Source: torch/include/ATen/autocast_mode.h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional

NARROW = (
    (functional, "linear"),
    (torch, "matmul"),
    (torch, "bmm"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
    (functional, "scaled_dot_product_attention"),
)
WIDE = ((functional, "layer_norm"), (functional, "rms_norm"), (functional, "cross_entropy"), (functional, "softmax"), (functional, "log_softmax"))


@contextlib.contextmanager
def emulated_autocast(dtype: torch.dtype | None) -> Iterator[Callable[[], None]]:
    """Patch this process so that calls cast as CUDA autocast would; ``None``: no autocast.

    Yields a function that forgets the cached weight casts, to be called where autocast's context would end: after each forward pass.
    """
    if dtype is None:
        yield lambda: None
        return
    cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def narrow(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if value.is_leaf and value.requires_grad and value.dtype == torch.float32 and torch.is_grad_enabled():
            if id(value) not in cache:
                cache[id(value)] = (value, value.to(dtype))
            return cache[id(value)][1]
        return value.to(dtype)

    def wide(value: Any) -> Any:
        is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
        return value.float() if is_half else value

    def casting(original: Callable[..., Any], cast: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})

        return call

    saved = [(owner, name, getattr(owner, name)) for owner, name in (*NARROW, *WIDE)]
    for owner, name in NARROW:
        setattr(owner, name, casting(getattr(owner, name), narrow))
    for owner, name in WIDE:
        setattr(owner, name, casting(getattr(owner, name), wide))
    try:
        yield cache.clear
    finally:
        for owner, name, original in saved:
            setattr(owner, name, original)
