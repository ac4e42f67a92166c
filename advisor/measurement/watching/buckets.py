"""Gradient buckets of ``DistributedDataParallel``: C++ makes and keeps them, so no operator shows them; DDP tells their sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from advisor.measurement.watching.holders import locals_of
from advisor.measurement.watching.owned import Own

KEY = -1  # in the place of a storage's
MAX_FRAMES = 64
_FORWARD = DistributedDataParallel.forward.__code__


def around(model: torch.nn.Module | None) -> DistributedDataParallel | None:
    """The DDP that a model is, or that is running it now: its frame is above the model's own forward pass."""
    if isinstance(model, DistributedDataParallel):
        return model
    frame: FrameType | None = sys._getframe(1) if torch.distributed.is_available() and torch.distributed.is_initialized() else None
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code is _FORWARD:
            found: DistributedDataParallel = locals_of(frame)["self"]
            return found
        frame = frame.f_back
    return None


def of(wrapped: DistributedDataParallel | None, owned: Iterable[Own]) -> list[Own]:
    """Its buckets as one holding; ``owned``: what else is held, as gradients that are views of buckets are counted already."""
    if wrapped is None:
        return []
    size = bucket_bytes(wrapped)
    if getattr(wrapped, "gradient_as_bucket_view", False):
        size -= sum(own.bytes for own in owned if own.part == "gradients")
        return [Own("gradients", "DDP's buckets, of which gradients are views", size, "fp32")] if size > 0 else []
    return [Own("communication", "DDP's gradient buckets", size, "fp32")] if size else []


def bucket_bytes(wrapped: DistributedDataParallel) -> int:
    """Bytes of all buckets, as DDP tells them (torch 2.6 to 2.13, ``_get_ddp_logging_data``), else those of the gradients that it reduces."""
    told: dict[str, Any] = wrapped._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch ships no types here
    sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    known = [int(word) for word in sizes.split(",") if word.strip().isdecimal()]
    return sum(known) or sum(p.numel() * p.element_size() for p in wrapped.parameters() if p.requires_grad)
