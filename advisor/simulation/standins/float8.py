"""torchao's float8 linear layer by what it allocates and keeps: one dynamic scale a tensor, weights as they are, casts for each product.

Read in torchao 0.14.1 float8/float8_linear.py ``matmul_with_hp_or_float8_args``, float8_utils.py ``tensor_to_scale``, ``to_fp8_saturated``,
float8_training_tensor.py ``_ToFloat8ConstrFunc``, float8_ops.py ``preprocess_addmm``, and compared with its births and deaths on a CPU
(``tests/simulation/test_float8.py``). Input and weight are kept for the backward pass in their own dtype; run eagerly, a cast passes through two fp32
copies, 8 bytes an element for a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2  # config.py: e4m3 for input and weight, e5m2 for the gradient
SMALLEST = 1e-12  # float8_utils.py EPS
MULTIPLE = 16  # torch._scaled_mm takes no other sizes; torchtitan and accelerate leave other layers as they are


def convert(model: torch.nn.Module) -> None:
    """Every linear layer of sizes that can be, but the head, which torchtitan's and accelerate's filters name."""
    anymodel: Any = model
    head = anymodel.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head and not module.in_features % MULTIPLE and not module.out_features % MULTIPLE:
            setattr(module, "forward", _linear(module))  # noqa: B010  typed otherwise


def _linear(module: torch.nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    product: Any = _Product

    def forward(x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled():
            x = x.to(torch.get_autocast_dtype("cuda"))
        out: torch.Tensor = product.apply(x, module.weight.t())
        return out if module.bias is None else out + module.bias.to(out.dtype)

    return forward


class _Product(torch.autograd.Function):
    """``[..., in] @ [in, out]``; every cast lives as long as in torchao's function, whose local names hold it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        left, right = _cast(x, FORWARD), _cast(weight, FORWARD)
        out = _multiplied(left.reshape(-1, x.shape[-1]), right, x.dtype)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        left, right = _cast(flat, BACKWARD), _cast(weight, FORWARD)
        of_input = _multiplied(left, right.t(), grad.dtype).reshape(*grad.shape[:-1], weight.shape[0])
        rows = x.reshape(-1, x.shape[-1])
        second, given = _cast(flat, BACKWARD), _cast(rows, FORWARD)
        of_weight = _multiplied(second.t(), given, grad.dtype)
        return of_input, of_weight.t()


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in fp8, its scale from the largest value that it has now."""
    with torch.no_grad():
        largest = torch.max(torch.abs(x)).to(torch.float64)
        scale = (torch.finfo(dtype).max / torch.clamp(largest, min=SMALLEST)).to(torch.float32)
        scaled = x.to(torch.float32) * scale
        return scaled.clamp(min=-torch.finfo(dtype).max, max=torch.finfo(dtype).max).to(dtype)


def _multiplied(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """cuBLAS takes the left factor by rows and the right one by columns: others are copied."""
    if not _by_rows(left):
        left = left.contiguous()
    if _by_rows(right):
        right = right.t().contiguous().t()
    one = torch.ones((), dtype=torch.float32, device=left.device)
    scaled: Any = torch._scaled_mm
    out: torch.Tensor = scaled(left, right, scale_a=one, scale_b=one, out_dtype=dtype)
    return out


def _by_rows(matrix: torch.Tensor) -> bool:
    return matrix.stride(0) > matrix.stride(1) == 1
