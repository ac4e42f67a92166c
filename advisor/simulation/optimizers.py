"""Optimizers as PyTorch runs them on CUDA: foreach, fused and for-loop, on meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import bitsandbytes


def build(model: torch.nn.Module, job: Job) -> torch.optim.Optimizer:
    """The job's optimizer over the parameters that train; ``in_backward``: one for each, stepped as soon as its gradient exists.

    Raises:
        CannotProbe: an optimizer without a stand-in.
    """
    parameters: list[Any] = [p for p in model.parameters() if p.requires_grad]
    if not job.optimizer.in_backward:
        return _over(model, parameters, job)
    apart = [_over(model, [p], job) for p in parameters]
    for parameter, optimizer in zip(parameters, apart, strict=True):
        hooked: Any = parameter
        hooked.register_post_accumulate_grad_hook(_stepping(optimizer))
    return _Together(apart)


def by_mesh(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parameters that one kernel may take together: a foreach kernel spans no two meshes (trainer.py ``create_optimizer``, ``_mixed_mesh_grad_norm``)."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def clip(parameters: Sequence[torch.Tensor], largest: float) -> None:
    """Gradients scaled to a norm of at most ``largest``: one norm a mesh, then one of them all."""
    from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

    groups = by_mesh(parameters)
    if len(groups) < 2:
        clip_grad_norm_(parameters, largest)
        return
    norms: list[Any] = [get_total_norm([p.grad for p in alike if p.grad is not None]) for alike in groups]
    total = torch.linalg.vector_norm(torch.stack([norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]))
    for alike in groups:
        clip_grads_with_norm_(alike, largest, total)


class _Together(torch.optim.Optimizer):
    """The states of many optimizers, whose steps have been taken."""

    def __init__(self, apart: list[torch.optim.Optimizer]) -> None:
        super().__init__([p for o in apart for group in o.param_groups for p in group["params"]], {})
        self.apart = apart

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Only gathers the states, for their names."""
        del closure
        for optimizer in self.apart:
            self.state.update(optimizer.state)


def _stepping(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return hook


def _over(model: torch.nn.Module, parameters: list[torch.nn.Parameter], job: Job) -> torch.optim.Optimizer:
    implementation = job.optimizer.implementation or "foreach"
    if implementation == "foreach" and job.offload.parameters == "cpu":
        implementation = "for-loop"  # the default for parameters on a CPU: torch/optim/optimizer.py _default_to_fused_or_foreach
    flags: dict[str, Any] = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    if implementation == "multi-tensor":
        raise CannotProbe("the probe has no stand-in for apex's multi-tensor optimizers: the estimate stands in")
    if implementation == "fused":
        _allow_fused_on_meta()
    name = job.optimizer.name or "adamw"
    groups = [{"params": alike} for alike in by_mesh(parameters)]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=1e-5, **flags)
    if name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(groups, lr=1e-5, momentum=0.9 if name == "sgd-momentum" else 0.0, **flags)
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
