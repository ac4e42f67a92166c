"""bitsandbytes on the meta device: 4- and 8-bit linear layers and 8-bit AdamW, by the tensors that they hold, keep and make for a moment.

Read in bitsandbytes 0.43 and 0.50: nn/modules.py (``Linear4bit``, ``Linear8bitLt``), autograd/_functions.py (``MatMul4Bit``,
``MatMul8bitLt``), functional.py (``dequantize_4bit``, ``int8_vectorwise_quant``), optim/optimizer.py (``init_state``).
The classes bear the library's names: peft and transformers ask for them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional

BLOCK = 64  # weights that share a scale in 4 bit
NESTED_BLOCK = 256  # scales that share a scale under double quantisation
THRESHOLD = 6.0  # llm_int8_threshold's default in transformers


class Params4bit(torch.nn.Parameter):
    """Packed weights, two a byte, as a column ``[elements / 2, 1]``."""

    quant_state: Any
    quant_type: str
    compress_statistics: bool


class Int8Params(torch.nn.Parameter):
    """Weights in int8, with their row scales."""

    CB: Any
    SCB: Any


class Linear4bit(torch.nn.Linear):
    """A frozen linear layer in nf4 or fp4."""

    def __init__(self, source: torch.nn.Linear, *, quant_type: str, double: bool, compute_dtype: torch.dtype, storage: torch.dtype = torch.uint8) -> None:
        rows, columns = _shape(source)
        device, dtype = source.weight.device, source.weight.dtype
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.compute_dtype, self.bias = columns, rows, compute_dtype, source.bias
        packed = Params4bit(torch.empty(-(-rows * columns // (2 * storage.itemsize)), 1, dtype=storage, device=device), requires_grad=False)
        packed.quant_type, packed.compress_statistics = quant_type, double
        packed.quant_state = self.quant_state = _state(rows, columns, dtype, device, double=double)  # the module's own outlives FSDP's views
        self.weight = packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in] -> [..., out]`` in the input's dtype, computed in ``compute_dtype``."""
        wide = x.dtype
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        out: torch.Tensor = _apply(_MatMul4Bit, x.to(self.compute_dtype), self.weight.t(), bias, self.quant_state)
        return out.to(wide)


class Linear8bitLt(torch.nn.Linear):
    """A frozen linear layer in int8 with one scale a row."""

    def __init__(self, source: torch.nn.Linear) -> None:
        rows, columns = _shape(source)
        device = source.weight.device
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = columns, rows, source.bias
        weight = Int8Params(torch.empty(rows, columns, dtype=torch.int8, device=device), requires_grad=False)
        weight.CB, weight.SCB = None, torch.empty(rows, dtype=torch.float32, device=device)
        self.weight = weight
        self.state = SimpleNamespace(CB=weight, SCB=weight.SCB, has_fp16_weights=False, threshold=THRESHOLD, memory_efficient_backward=False)
        self.index = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in] -> [..., out]``."""
        out: torch.Tensor = _apply(_MatMul8bitLt, x, self.weight, self.bias, self.state)
        return out


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


def _shape(source: Any) -> tuple[int, int]:
    """Output and input width; GPT-2's Conv1D holds its weight the other way round."""
    first, second = source.weight.shape
    return (first, second) if isinstance(source, torch.nn.Linear) else (second, first)


def _state(rows: int, columns: int, dtype: torch.dtype, device: Any, *, double: bool) -> SimpleNamespace:
    blocks = -(-rows * columns // BLOCK)
    state = SimpleNamespace(shape=torch.Size((rows, columns)), dtype=dtype, nested=double, code=torch.empty(16, device=device), state2=None, offset=None)
    state.absmax = torch.empty(blocks, dtype=torch.uint8 if double else torch.float32, device=device)
    if double:
        state.state2 = SimpleNamespace(absmax=torch.empty(-(-blocks // NESTED_BLOCK), device=device), code=torch.empty(256, device=device))
        state.offset = torch.empty((), device=device)
    return state


def tensors_of(holder: Any) -> dict[str, torch.Tensor]:
    """What lies beside a quantised weight (of the weight, or of its layer): scales, code books."""
    if isinstance(holder, Int8Params):
        return {"SCB": holder.SCB}
    if isinstance(holder, Linear8bitLt):
        return {"SCB": holder.state.SCB}
    state = getattr(holder, "quant_state", None)
    if state is None:
        return {}
    found = {"absmax": state.absmax, "quant_map": state.code}
    if state.nested:
        found |= {"nested_absmax": state.state2.absmax, "nested_quant_map": state.state2.code, "offset": state.offset}
    return found


def dequantize_4bit(state: Any) -> torch.Tensor:
    """The weight in 16 bit, ``[out, in]``; under double quantisation its scales are widened first."""
    if state.nested:
        absmax = torch.empty(state.absmax.shape, dtype=torch.float32, device=state.absmax.device)
        absmax += state.offset
    return torch.empty(state.shape, dtype=state.dtype, device=state.absmax.device)


class _MatMul4Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, state: Any) -> torch.Tensor:
        del packed
        ctx.state = state
        return functional.linear(a, dequantize_4bit(state).to(a.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        bias = grad.sum(tuple(range(grad.dim() - 1))) if ctx.needs_input_grad[2] else None
        return torch.matmul(grad, dequantize_4bit(ctx.state).to(grad.dtype)) if ctx.needs_input_grad[0] else None, None, bias, None


class _MatMul8bitLt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: Any) -> torch.Tensor:
        del bias  # added by the kernel that widens the product
        flat = a.reshape(-1, a.shape[-1])
        half = flat.to(torch.float16)
        quantised = torch.empty(half.shape, dtype=torch.int8, device=a.device)
        scales = torch.empty(half.shape[0], dtype=torch.float32, device=a.device)
        outliers = (half.abs() >= state.threshold).any(dim=0)
        del half, outliers
        product = torch.empty(quantised.shape[0], weight.shape[0], dtype=torch.int32, device=a.device)
        out = torch.empty(product.shape, dtype=torch.float16, device=a.device)
        del product, scales, quantised
        ctx.state, ctx.shape, ctx.dtype = state, a.shape, a.dtype
        ctx.tensors = flat if ctx.needs_input_grad[0] else None  # kept, though the backward pass of frozen weights never reads it
        return out.to(a.dtype).reshape(*a.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat = grad.reshape(-1, grad.shape[-1]).contiguous()
        wide = ctx.state.CB.to(ctx.dtype, copy=True).mul_(ctx.state.SCB.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(flat.to(ctx.dtype), wide).view(ctx.shape), None, None, None


class AdamW8bit(torch.optim.Optimizer):
    """8-bit AdamW: one byte a moment and parameter and an fp32 scale a block; small tensors and those named ``wide`` in fp32.

    The kernel works in place, tensor by tensor, without temporaries. Paged states lie in managed memory that torch does not count.
    """

    MIN_8BIT = 4096

    def __init__(self, parameters: list[torch.nn.Parameter], *, block: int, wide: set[int], paged: bool) -> None:
        super().__init__(parameters, {})
        self.block, self.wide, self.paged = block, wide, paged
        self._maps: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the states that are missing."""
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = self._first(p)

    def _first(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        paged = self.paged and p.numel() >= 100_000  # get_state_buffer: smaller states stay on the device
        if p.numel() < self.MIN_8BIT or id(p) in self.wide:
            return {} if paged else {f"state{i}": torch.zeros_like(p, dtype=torch.float32) for i in (1, 2)}
        if not self._maps:
            self._maps = [torch.empty(256, device=p.device) for _ in (1, 2)]
        scales = {f"absmax{i}": torch.zeros(-(-p.numel() // self.block), device=p.device) for i in (1, 2)}
        return scales if paged else {**{f"state{i}": torch.zeros_like(p, dtype=torch.uint8) for i in (1, 2)}, **scales}
