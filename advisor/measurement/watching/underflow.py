"""Zeros and subnormals among fp16 gradients, by layer: where they pile up, the smaller gradients are already lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from advisor.measurement.watching.sampling import sample

SAMPLES = 16_384
SMALLEST_NORMAL = 6.103515625e-05  # 2**-14, fp16's smallest number of full precision; its smallest at all is 2**-24
LOST = 0.25  # share of zeros from which a layer counts
NEAR = 0.25  # share of subnormals among what is left: true zeros (unused tokens, dead units) leave none behind


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one gradient's sample: the share of zeros, and of subnormals among the others."""

    zero: float
    subnormal: float


def rates(gradients: Sequence[torch.Tensor]) -> list[Rates]:
    """The shares within a sample of :data:`SAMPLES` values of each. Waits for the device once."""
    counted: list[torch.Tensor] = []  # [zeros, subnormals, sampled] of each
    for gradient in gradients:
        taken = sample(gradient, SAMPLES).abs().float()
        zero = taken == 0
        counted.append(torch.stack((zero.sum(), ((taken < SMALLEST_NORMAL) & ~zero).sum(), torch.full_like(zero.sum(), taken.numel()))))
    found: list[Rates] = []
    for zeros, small, all_ in torch.stack([c.to(counted[0].device) for c in counted]).tolist() if counted else ():
        found.append(Rates(zeros / all_ if all_ else 0.0, small / (all_ - zeros) if all_ > zeros else 0.0))
    return found


def lost(seen: list[Rates]) -> bool:
    """Whether a layer's gradients underflow: in two looks, many zeros with subnormals beside them, or nothing but zeros."""
    last = seen[-2:]
    return len(last) == 2 and all((r.zero >= LOST and r.subnormal >= NEAR) or r.zero == 1.0 or r.subnormal >= 0.9 for r in last)
