"""Autocast on the meta device: ``torch.autocast`` knows no meta tensors, so its lists are applied by patching the functions that models call.

To 16 bit: products and convolutions; fp32 weights that train are cast once a forward pass and kept (autocast's cache). To fp32: powers,
norms, losses. With fp32 as their own output dtype: softmax and sums. Source: torch/include/ATen/autocast_mode.h (``AT_FORALL_*``) and, for
the cache, aten/src/ATen/autocast_mode.cpp ``cached_cast``, torch 2.13. ``tests/simulation`` compares with real autocast on the CPU, whose
lists are shorter.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from advisor.simulation.patching import patched


@dataclass(frozen=True)
class Lists:
    """Function names: to 16 bit, to fp32, and those that get fp32 as their own dtype argument."""

    narrow: frozenset[str]
    wide: frozenset[str]
    typed: frozenset[str]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRODUCTS = _names("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d addmm matmul mm linear addbmm baddbmm bmm")
_PRODUCTS |= _names("scaled_dot_product_attention")
CUDA = Lists(
    _PRODUCTS | _names("conv_tbc prelu addmv addr einsum mv chain_matmul"),
    _names("acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm rms_norm group_norm")
    | _names("cosine_similarity nll_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss binary_cross_entropy_with_logits dist cdist logsumexp"),
    _names("prod softmax log_softmax cumprod cumsum sum"),
)
CPU = Lists(_PRODUCTS, _names("nll_loss l1_loss smooth_l1_loss huber_loss mse_loss kl_div multi_margin_loss"), frozenset())
HALF = (torch.bfloat16, torch.float16)
_OPERATORS = {"matmul": ("__matmul__",), "pow": ("__pow__", "__rpow__")}
_OWNERS = (torch, torch.Tensor, functional, torch._C._nn)


class _State:
    """Which dtype casts go to now (``None``: no autocast), and the casts that are kept until the outermost context ends."""

    def __init__(self, devices: frozenset[str]) -> None:
        self.dtype: torch.dtype | None = None
        self.depth = 0
        self.devices = devices
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def narrow(self, value: Any) -> Any:
        """An argument in 16 bit; weights that train are cast once and kept, as ``cached_cast`` does."""
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return type(value)(map(self.narrow, value))
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype in (self.dtype, torch.float64):
            return value
        if value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view():
            if id(value) not in self.kept:
                self.kept[id(value)] = (value, value.to(self.dtype))
            return self.kept[id(value)][1]
        return value.to(self.dtype)


def _contexts(state: _State) -> list[tuple[Any, str, Any]]:
    """``torch.autocast`` for meta tensors, and the questions that models and checkpoints ask of it."""
    real, enabled, dtype_of, available = torch.autocast, torch.is_autocast_enabled, torch.get_autocast_dtype, torch.amp.is_autocast_available

    class Autocast(contextlib.ContextDecorator):
        def __new__(cls, device_type: str, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls) if device_type in state.devices else real(device_type, *args, **kwargs)

        def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
            del device_type, cache_enabled
            self.dtype, self.before = (dtype or torch.bfloat16) if enabled else None, list[Any]()

        def __enter__(self) -> Any:
            self.before.append(state.dtype)
            state.dtype, state.depth = self.dtype, state.depth + 1
            return self

        def __exit__(self, *_: object) -> None:
            state.dtype, state.depth = self.before.pop(), state.depth - 1
            if not state.depth:
                state.kept.clear()

    def is_enabled(device: str = "cuda") -> bool:
        return state.dtype is not None if device in state.devices else enabled(device)

    def get_dtype(device: str = "cuda") -> torch.dtype:
        return (state.dtype or torch.float16) if device in state.devices else dtype_of(device)

    def maybe(device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None) -> Any:
        return Autocast(device_type, dtype, enabled, cache_enabled) if is_enabled(device_type) or enabled else contextlib.nullcontext()

    patches: list[tuple[Any, str, Any]] = [(owner, "autocast", Autocast) for owner in (torch, torch.amp, torch.amp.autocast_mode)]
    patches += [(torch, "is_autocast_enabled", is_enabled), (torch, "get_autocast_dtype", get_dtype), (torch, "get_autocast_gpu_dtype", get_dtype)]
    patches.append((torch.amp, "is_autocast_available", lambda device: device in state.devices or available(device)))
    patches += [(module, "maybe_autocast", maybe) for module in list(sys.modules.values()) if "maybe_autocast" in getattr(module, "__dict__", ())]
    return patches


@contextlib.contextmanager
def emulated_autocast(lists: Lists = CUDA, devices: frozenset[str] = frozenset({"cuda", "meta"})) -> Iterator[None]:
    """Patch this process so that ``torch.autocast`` of the given device types does on their tensors what it does on CUDA's."""
    state = _State(devices)

    def casting(original: Callable[..., Any], cast: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if state.dtype is None:
                return original(*args, **kwargs)
            named = {key: cast(kwargs[key]) for key in reversed(kwargs)}  # last argument first, as gcc evaluates the wrappers' calls
            return original(*reversed([cast(value) for value in reversed(args)]), **named)

        return call

    def typing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            untyped = kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args)
            if state.dtype is not None and untyped and args and isinstance(args[0], torch.Tensor) and args[0].dtype in HALF:
                kwargs["dtype"] = torch.float32
            return original(*args, **kwargs)

        return call

    patches = [(owner, name, casting(function, state.narrow)) for owner, name, function in _found(lists.narrow)]
    patches += [(owner, name, casting(function, _wide)) for owner, name, function in _found(lists.wide)]
    patches += [(owner, name, typing(function)) for owner, name, function in _found(lists.typed) if owner is not functional]
    patches.append((functional, "cross_entropy", _cross_entropy(functional.cross_entropy, state)))
    with patched(patches + _contexts(state)):
        yield


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def _found(names: frozenset[str]) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    for name in sorted(names):
        for owner in _OWNERS:
            for alias in (name, *(_OPERATORS.get(name, ()) if owner is torch.Tensor else ())):
                function = getattr(owner, alias, None)
                if callable(function):
                    yield owner, alias, function


def _cross_entropy(original: Callable[..., Any], state: _State) -> Callable[..., Any]:
    """Its softmax keeps the logits' dtype (it is asked for by name), and its nll loss is then widened (aten LossNLL.cpp ``cross_entropy_loss``)."""

    def cross_entropy(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        plain = not args and not kwargs.get("label_smoothing") and kwargs.get("weight") is None and not target.is_floating_point()
        if state.dtype is None or input.dtype not in HALF or not plain:
            return original(input, target, *args, **kwargs)
        scores = torch.log_softmax(input, 1 if input.dim() > 1 else 0, dtype=input.dtype)
        return functional.nll_loss(scores, target, ignore_index=kwargs.get("ignore_index", -100), reduction=kwargs.get("reduction", "mean"))

    return cross_entropy
