"""Zeros and subnormals among fp16 gradients, by layer: where they pile up, the smaller gradients are already lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SAMPLES = 16_384
SMALLEST_NORMAL = 6.103515625e-05  # 2**-14, fp16's smallest number of full precision; its smallest at all is 2**-24
LOST = 0.25  # share of zeros from which a layer counts
NEAR = 0.25  # share of subnormals among what is left: true zeros (unused tokens, dead units) leave none behind


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one gradient's sample: the share of zeros, and of subnormals among the others."""

    zero: float
    subnormal: float


def rates(gradient: torch.Tensor) -> Rates:
    """The shares within a strided sample of :data:`SAMPLES` values."""
    with torch.no_grad():
        flat = gradient.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLES)].abs().float()
        zero = sample == 0
        left = int((~zero).sum())
        small = int((sample[~zero] < SMALLEST_NORMAL).sum())
        return Rates(float(zero.float().mean()), small / left if left else 0.0)


def lost(seen: list[Rates]) -> bool:
    """Whether a layer's gradients underflow: in two looks, many zeros with subnormals beside them, or nothing but zeros."""
    last = seen[-2:]
    return len(last) == 2 and all((r.zero >= LOST and r.subnormal >= NEAR) or r.zero == 1.0 or r.subnormal >= 0.9 for r in last)
