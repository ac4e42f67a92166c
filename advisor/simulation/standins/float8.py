"""torchao's float8 linear layer by what it allocates and keeps: dynamic scales of a tensor or of its rows, weights as they are, casts for each product.

Read in torchao 0.10.0 and 0.14.1 float8/float8_linear.py ``matmul_with_hp_or_float8_args``, config.py ``from_recipe_name``, float8_utils.py
``tensor_to_scale``, ``to_fp8_saturated``, float8_training_tensor.py ``_ToFloat8ConstrFunc``, float8_ops.py ``preprocess_addmm``,
``addmm_float8_unwrapped``, and compared with its births and deaths on a CPU and on a rank of FSDP2 (``tests/simulation/test_float8.py``). Input and
weight are kept for the backward pass in their own dtype; run eagerly, a cast passes through two fp32 copies, 8 bytes an element for a moment.

Compiled, a cast is one kernel that reads the wide tensor and writes a byte an element in the order that the product asks for (torchtitan compiles
each block; what it checkpoints keeps nothing of the casts).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2  # config.py: e4m3 for input and weight, e5m2 for the gradient, by rows e4m3 for it too
SMALLEST = 1e-12  # float8_utils.py EPS
MULTIPLE = 16  # torch._scaled_mm takes no other sizes; torchtitan and accelerate leave other layers as they are


def convert(model: torch.nn.Module, *, rowwise: bool = False, compiled: bool = False) -> None:
    """Every linear layer of sizes that can be, but the head, which torchtitan's and accelerate's filters name."""
    anymodel: Any = model
    head = anymodel.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head and not module.in_features % MULTIPLE and not module.out_features % MULTIPLE:
            setattr(module, "forward", _linear(module, rowwise=rowwise, compiled=compiled))  # noqa: B010  typed otherwise


def _linear(module: torch.nn.Linear, *, rowwise: bool, compiled: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    product: Any = Fused if compiled else _Product
    more = () if compiled else (rowwise,)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled():
            x = x.to(torch.get_autocast_dtype("cuda"))
        out: torch.Tensor = product.apply(x, module.weight.t(), *more)
        return out if module.bias is None else out + module.bias.to(out.dtype)

    return forward


class _Product(torch.autograd.Function):
    """``[..., in] @ [in, out]``; every cast and its scale live as long as in torchao's function, whose local names hold them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, rowwise: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rowwise = rowwise
        left, rows = _cast(x, FORWARD, -1 if rowwise else None)
        right, columns = _cast(weight, FORWARD, 0 if rowwise else None)
        out = _multiplied(left.reshape(-1, x.shape[-1]), right, x.dtype, rows.reshape(-1, 1) if rowwise else rows, columns, fast=True)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        inner, outer, of_gradient = (-1, 0, FORWARD) if ctx.rowwise else (None, None, BACKWARD)
        flat = grad.reshape(-1, grad.shape[-1])
        left, rows = _cast(flat, of_gradient, inner)
        right, columns = _cast(weight, FORWARD, inner)
        of_input = _multiplied(left, right.t(), grad.dtype, rows, columns.t()).reshape(*grad.shape[:-1], weight.shape[0])
        tokens = x.reshape(-1, x.shape[-1])
        second, above = _cast(flat, of_gradient, outer)
        given, across = _cast(tokens, FORWARD, outer)
        of_weight = _multiplied(second.t(), given, grad.dtype, above.t(), across)
        return of_input, of_weight.t(), None


class Fused(torch.autograd.Function):
    """Either, as inductor runs it: each factor is written once in 8 bits, and ends with the product that reads it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``x`` [..., in], ``weight`` [in, out]."""
        ctx.save_for_backward(x, weight)
        out = _of_bytes(x.reshape(-1, x.shape[-1]), weight, x.dtype)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of both."""
        x, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        of_input = _of_bytes(flat, weight.t(), grad.dtype).reshape(*grad.shape[:-1], weight.shape[0])
        of_weight = _of_bytes(flat.t(), x.reshape(-1, x.shape[-1]), grad.dtype)
        return of_input, of_weight.t()


def _of_bytes(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    by_rows = torch.empty(left.shape, dtype=FORWARD, device=left.device)
    by_columns = torch.empty(right.t().shape, dtype=FORWARD, device=left.device).t()
    one = torch.empty((), dtype=torch.float32, device=left.device)
    return _product(by_rows, by_columns, dtype, one, one)


def _cast(x: torch.Tensor, dtype: torch.dtype, along: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in fp8, and its scale (``along`` a dimension: one for all values along it) from the largest values that it has now."""
    with torch.no_grad():
        largest = torch.max(torch.abs(x)) if along is None else torch.amax(torch.abs(x), dim=along, keepdim=True)
        scale = _scale(largest, dtype, rounded=along is not None)
        del largest
        scaled = x.to(torch.float32) * scale
        return scaled.clamp(min=-torch.finfo(dtype).max, max=torch.finfo(dtype).max).to(dtype), scale


def _scale(largest: torch.Tensor, dtype: torch.dtype, *, rounded: bool) -> torch.Tensor:
    """``rounded``: to a power of two, as the recipe by rows asks."""
    wide = largest.to(torch.float64)
    scale = torch.finfo(dtype).max / torch.clamp(wide, min=SMALLEST)
    scale = scale.to(torch.float32)
    return torch.exp2(torch.floor(torch.log2(scale))) if rounded else scale


def _multiplied(
    left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, left_scale: torch.Tensor, right_scale: torch.Tensor, *, fast: bool = False
) -> torch.Tensor:
    """The product of two casts. By rows, where sums are not the fast ones, it is multiplied by the scales of both afterwards, all at once."""
    if not _by_rows(left):
        left = left.contiguous()
    if _by_rows(right):
        right = right.t().contiguous().t()
    first, second = left_scale.reciprocal(), right_scale.reciprocal()
    rowwise, after = first.dim() > 0, None
    if rowwise and not fast:
        after = first * second
        first = first.new_ones(())
        second = first.new_ones(())
    narrow = rowwise and dtype in (torch.float16, torch.float32)
    out = _product(left, right, torch.bfloat16 if narrow else dtype, first, second)
    if after is not None:
        out *= after
    return out.to(dtype) if narrow else out


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """cuBLAS takes the left factor by rows and the right one by columns."""
    scaled: Any = torch._scaled_mm
    out: torch.Tensor = scaled(left, right, scale_a=first, scale_b=second, out_dtype=dtype)
    return out


def _by_rows(matrix: torch.Tensor) -> bool:
    return matrix.stride(0) > matrix.stride(1) == 1
