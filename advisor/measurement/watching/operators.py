"""What the observer needs to know of an operator, asked of its schema once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash", "_scaled_dot_product_efficient_attention": "efficient", "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention_for_cpu": "flash", "_flash_attention_forward": "flash", "_scaled_dot_product_attention_math_for_mps": "math",
    "_efficient_attention_forward": "efficient", "_cudnn_attention_forward": "cudnn", "_scaled_dot_product_fused_attention_overrideable": "fused",
}  # fmt: skip
# libraries that register their kernels with torch: flash_attn 2.7+ flash_attn_interface.py, its hopper/flash_attn_interface.py (FlashAttention 3)
_OTHERS = {
    "flash_attn::_flash_attn_forward": "flash-2", "flash_attn::_flash_attn_varlen_forward": "flash-2", "flash_attn_3::fwd": "flash-3",
}  # fmt: skip
_SILENT = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem", "inductor", "higher_order", "prim", "profiler"})
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_PRODUCTS = frozenset({"bmm", "baddbmm", "matmul", "mm"})
_DRAWS = frozenset({"bernoulli_"})  # in place, and yet what a recomputation may draw otherwise


@dataclass(frozen=True, slots=True)
class Traits:
    """Of one operator: ``attention`` names the kernel; ``draws``: it fills what is there with random values."""

    name: str
    attention: str | None
    softmax: bool
    product: bool
    draws: bool


_known: dict[Any, Traits | None] = {}


def traits(function: Any) -> Traits | None:
    """Of an ``OpOverload``; ``None`` where it can not allocate: each of its results is, or is a view of, an argument."""
    try:
        return _known[function]
    except KeyError:
        found = _known[function] = _asked(function)
        return found


def _asked(function: Any) -> Traits | None:
    if function.namespace in _SILENT or not hasattr(function, "_schema"):
        return None
    name = function._schema.name.partition("::")[2]
    attention = _OTHERS.get(function._schema.name, _ATTENTION.get(name) if function.namespace == "aten" else None)
    returns = function._schema.returns
    found = Traits(name, attention, name in _SOFTMAX, name in _PRODUCTS, name in _DRAWS)
    aliases = bool(returns) and all(value.alias_info is not None for value in returns)
    return None if aliases and not found.draws else found
