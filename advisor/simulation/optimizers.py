"""Optimizers as PyTorch runs them on CUDA: foreach, fused and for-loop, on meta tensors."""

from __future__ import annotations

from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import bitsandbytes


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
    if name in ("adamw-8bit", "paged-adamw-8bit"):
        return _eight_bit(model, parameters, job, paged=name.startswith("paged"))
    raise CannotProbe(f"the probe has no stand-in for the optimizer {name} yet: the estimate stands in")


def _eight_bit(model: torch.nn.Module, parameters: list[torch.nn.Parameter], job: Job, *, paged: bool) -> torch.optim.Optimizer:
    """bitsandbytes; Trainer asks for 32-bit states of embeddings (trainer.py ``create_optimizer``: ``GlobalOptimManager``)."""
    from packaging.version import InvalidVersion, Version

    try:
        old = Version(str((job.framework.versions or {}).get("bitsandbytes", "0.46"))) < Version("0.45")
    except InvalidVersion:
        old = False
    trainers = ("hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift", "unsloth")
    embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)] if job.framework.name in trainers else []
    return bitsandbytes.AdamW8bit(parameters, block=2048 if old else 256, wide={id(m.weight) for m in embeddings}, paged=paged)


def _allow_fused_on_meta() -> None:
    """torch.optim checks that fused kernels exist for the device; on meta nothing is computed, so any device will do."""
    import torch.optim.optimizer as base

    base._get_fused_kernels_supported_devices = lambda: ["meta", "cuda", "cpu"]  # type: ignore[attr-defined]
