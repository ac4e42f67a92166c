"""Puts fused kernels in the place of a built model's own code, as Liger, unsloth's kernels and fms-acceleration patch models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional

from advisor.job import Job
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import fused, trl


def fuse(model: torch.nn.Module, job: Job) -> list[tuple[Any, str, Any]]:
    """Patch the model's norms and MLPs, and return patches of functions for the time of the steps.

    Raises:
        CannotProbe: a loss or kernel without a stand-in.
    """
    kernels = set(job.activations.kernels or ())
    patches: list[tuple[Any, str, Any]] = []
    if kernels & {"rmsnorm", "layernorm"}:
        for module in model.modules():
            name = type(module).__name__
            if ("rmsnorm" in kernels and "RMSNorm" in name) or ("layernorm" in kernels and name == "LayerNorm"):
                module.forward = _norm(module)
    if "swiglu" in kernels:
        for module in model.modules():
            if all(hasattr(module, part) for part in ("gate_proj", "up_proj", "down_proj")):
                module.forward = _swiglu(module)
    if "rope" in kernels:
        patches += [(owner, "apply_rotary_pos_emb", _rope) for owner in _modelling(model) if hasattr(owner, "apply_rotary_pos_emb")]
    loss = job.activations.loss or "full-fp32"
    if loss == "chunked" and job.framework.name == "trl":
        model.forward = trl.head_of(model, job)
    elif loss == "chunked":
        raise CannotProbe(f"the probe does not know how {job.framework.name or 'this framework'} makes its chunks of the loss: the estimate stands in")
    elif loss == "fused":
        patches.append((functional, "cross_entropy", _cross_entropy))
    elif loss == "fused-linear":
        model.forward = _fused_linear(model)
    elif loss not in ("full-fp32", "full"):
        raise CannotProbe(f"the probe has no stand-in for a {loss} loss on one device: the estimate stands in")
    return patches


def _modelling(model: torch.nn.Module) -> Iterator[Any]:
    names = {type(m).__module__ for m in model.modules()}
    yield from (sys.modules[name] for name in sorted(names) if "modeling" in name and name in sys.modules)


def _norm(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused.apply(fused.Norm, x, module.weight)
        return out

    return forward


def _swiglu(module: Any) -> Callable[[torch.Tensor], Any]:
    def forward(x: torch.Tensor) -> Any:
        return module.down_proj(fused.apply(fused.SwiGlu, module.gate_proj(x), module.up_proj(x)))

    return forward


def _rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any) -> Any:
    return fused.apply(fused.Rope, q, k, cos, sin)


def _cross_entropy(input: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> Any:
    return fused.apply(fused.CrossEntropy, input, target)


def _fused_linear(model: Any) -> Callable[..., Any]:
    """The causal model's forward pass without logits: decoder, then head and loss together (Liger's ``lce_forward``)."""
    head = model.get_output_embeddings()
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model

    def forward(input_ids: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        del labels  # the kernel reads them; nothing is made of them
        hidden = decoder(input_ids=input_ids, **kwargs)[0]
        shifted = hidden[..., :-1, :].contiguous()
        flat = shifted.view(-1, hidden.shape[-1])
        weight = head.weight
        if torch.is_autocast_enabled():
            flat, weight = flat.to(torch.get_autocast_dtype("cuda")), weight.to(torch.get_autocast_dtype("cuda"))
        return {"loss": fused.apply(fused.FusedLinearCrossEntropy, flat, weight)}

    return forward
