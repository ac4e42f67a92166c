"""bf16 on a card that has no bf16 arithmetic: torch computes it through fp32, which is slower and keeps wider temporaries."""

from __future__ import annotations

import torch

from advisor.measurement.watching import configured
from advisor.measurement.watching.finding import Finding
from advisor.spoken import with_article

NATIVE = (8, 0)  # compute capability from which CUDA has bf16 arithmetic (CUDA programming guide, arithmetic instructions)


def emulated(model: torch.nn.Module, autocast: torch.dtype | None, step: int) -> Finding | None:
    """A finding where the model computes in bf16 (its weights', or autocast's) and its card can not; ``None`` on other devices, and where it can."""
    dtype = autocast or next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    card = _card(model) if dtype is torch.bfloat16 else None
    if card is None or card[1] >= NATIVE:
        return None
    title = f"bf16 is emulated through fp32: {with_article(card[0])} (compute capability {card[1][0]}.{card[1][1]}) has no bf16 arithmetic; fp16 it has"
    return Finding("kernel-unsupported", title, configured.where(model), dtype="bf16", step=step)


def _card(model: torch.nn.Module) -> tuple[str, tuple[int, int]] | None:
    """Name and compute capability of a CUDA card that the model is on."""
    device = next((p.device for p in model.parameters()), None)
    if device is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device), (int(major), int(minor))
