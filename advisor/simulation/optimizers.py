"""Optimizers as PyTorch runs them on CUDA: foreach, fused and for-loop, on meta tensors."""

from __future__ import annotations

from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.request import CannotProbe


def build(model: torch.nn.Module, job: Job) -> torch.optim.Optimizer:
    """The job's optimizer over the parameters that train.

    Raises:
        CannotProbe: an optimizer without a stand-in.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    implementation = job.optimizer.implementation or "foreach"
    flags: dict[str, Any] = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    if implementation == "multi-tensor":
        raise CannotProbe("the probe has no stand-in for apex's multi-tensor optimizers: the estimate stands in")
    if implementation == "fused":
        _allow_fused_on_meta()
    name = job.optimizer.name or "adamw"
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-5, **flags)
    if name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9 if name == "sgd-momentum" else 0.0, **flags)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-5, foreach=flags["foreach"])
    raise CannotProbe(f"the probe has no stand-in for the optimizer {name} yet: the estimate stands in")


def _allow_fused_on_meta() -> None:
    """torch.optim checks that fused kernels exist for the device; on meta nothing is computed, so any device will do."""
    import torch.optim.optimizer as base

    base._get_fused_kernels_supported_devices = lambda: ["meta", "cuda", "cpu"]  # type: ignore[attr-defined]
