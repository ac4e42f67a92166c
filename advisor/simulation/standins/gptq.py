"""GPTQ's linear layer as its Triton kernels run it in training: packed 4-bit weights, widened whole to fp16 for each product.

Read in auto_gptq 0.7.1 nn_modules/qlinear/qlinear_tritonv2.py and the copy in fms-acceleration (gptqmodel/nn_modules/triton_utils/dequant.py
``dequant248``, ``QuantLinearFunction``); peft 0.13.2 tuners/lora/gptq.py.
"""

from __future__ import annotations

from typing import Any

import torch

BITS = 4
IN_A_WORD = 32 // BITS


class QuantLinear(torch.nn.Module):
    """``[..., in] -> [..., out]`` in fp16; nothing of it trains. ``group``: inputs that share a scale, -1 where all of an output do."""

    def __init__(self, source: torch.nn.Linear, *, group: int, shard_as: torch.dtype | None) -> None:
        super().__init__()
        self.infeatures, self.outfeatures = source.in_features, source.out_features
        device, groups = source.weight.device, -(-source.in_features // group) if group > 0 else 1
        packed = {
            "qweight": torch.empty(source.in_features // IN_A_WORD, source.out_features, dtype=torch.int32, device=device),
            "qzeros": torch.empty(groups, source.out_features // IN_A_WORD, dtype=torch.int32, device=device),
        }
        for name, tensor in packed.items():
            if shard_as is None:
                self.register_buffer(name, tensor)
            else:  # FSDP flattens floats only: the same bytes under another dtype
                self.register_parameter(name, torch.nn.Parameter(tensor.view(shard_as), requires_grad=False))
        self.register_buffer("scales", torch.empty(groups, source.out_features, dtype=torch.float16, device=device))
        self.register_buffer("g_idx", torch.empty(source.in_features, dtype=torch.int32, device=device))
        self.bias = source.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the widened weight."""
        function: Any = _Product
        out: torch.Tensor = function.apply(x.reshape(-1, x.shape[-1]), self.g_idx, self.scales)
        out = out.half().reshape(*x.shape[:-1], self.outfeatures)
        return out if self.bias is None else out + self.bias


def _widened(index: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.empty(index.shape[0], scales.shape[1], dtype=torch.float16, device=scales.device)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scales, index)
        return torch.matmul(x.half(), _widened(index, scales))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scales, index = ctx.saved_tensors
        return torch.matmul(grad.half(), _widened(index, scales).t()) if ctx.needs_input_grad[0] else None, None, None


def dispatch(target: torch.nn.Module, adapter_name: str, **kwargs: Any) -> torch.nn.Module | None:
    """peft's adapter for such a layer; None for any other."""
    from peft.tuners.lora import gptq

    base = getattr(target, "base_layer", target)
    if not isinstance(base, QuantLinear):
        return None
    classes: Any = gptq
    adapter = getattr(classes, "QuantLinear", None) or classes.GPTQLoraLinear
    made: torch.nn.Module = adapter(target, adapter_name, **kwargs)
    return made
