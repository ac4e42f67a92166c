"""What trains of a built model: all of it, adapters over a frozen base, or the last blocks."""

from __future__ import annotations

from typing import Any

import torch

from advisor.arithmetic.fates import ACTIVE
from advisor.job import Job
from advisor.simulation import images, placing
from advisor.simulation.patching import patched
from advisor.simulation.quantising import DTYPES
from advisor.simulation.request import CannotProbe

FUSED = "ParamWrapper"  # peft's adapter of a parameter that is no layer's weight: experts in one tensor
DIVIDED = (
    "peft's adapters of experts in one tensor (ParamWrapper) do not run under FSDP1: its get_delta_weight multiplies lora_B by lora_A outside the units that "
    "peft's wrapping policy makes of them (aten::mm on a shard's view; real ranks stop there too); FSDP2 runs them, and so does targets: attention"
)


def trainable(model: torch.nn.Module, job: Job, device: str) -> torch.nn.Module:
    """The model as it trains.

    Raises:
        CannotProbe: a method that is not run here.
    """
    kind = job.method.kind or "full"
    if kind == "full":
        return model
    if kind == "freeze":
        return _frozen_below(model)
    if kind not in ("lora", "dora"):
        raise CannotProbe(f"the probe does not run the method {kind} yet: the estimate stands in")
    import peft

    targets = job.method.targets or "all-linear"
    named: Any = (
        {"qv": ["q_proj", "v_proj"], "attention": ["q_proj", "k_proj", "v_proj", "o_proj"]}.get(targets, targets) if isinstance(targets, str) else list(targets)
    )
    settings = peft.LoraConfig(
        r=job.method.rank or 8,
        target_modules=named,
        lora_dropout=job.method.dropout or 0.0,
        use_dora=kind == "dora",
        modules_to_save=list(job.method.modules_to_save or ()) or None,
        task_type=None if getattr(getattr(model, "config", None), "model_type", None) == "whisper" else "CAUSAL_LM",  # whose wrapper names input_ids
    )
    spared = images.spared(model, job)
    if spared:
        settings.exclude_modules = spared  # peft has it since 0.14
    from advisor.simulation.standins import gptq

    with torch.device(device), patched([(peft.tuners.lora.model, "dispatch_gptq", gptq.dispatch)]):
        adapted = _adapted(peft, model, settings)
    if job.parallel.strategy == "fsdp1" and any(type(module).__name__ == FUSED for module in adapted.modules()):
        raise CannotProbe(DIVIDED)
    # peft leaves adapters on meta in torch's default dtype; on a device they take the base's dtype, widened to fp32 where the job says so
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[job.method.adapter_dtype or "fp32"])
    return adapted


def _adapted(peft: Any, model: torch.nn.Module, settings: Any) -> torch.nn.Module:
    try:
        adapted: torch.nn.Module = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    except ValueError as error:  # what it does not go with, which it would say in a run too
        raise CannotProbe(f"peft {peft.__version__} makes no such adapters, in a run neither ({str(error).partition(chr(10))[0][:200]})") from None
    return adapted


def _frozen_below(model: torch.nn.Module) -> torch.nn.Module:
    """Only the last blocks train: LLaMA-Factory's ``freeze_trainable_layers`` (2), all of their modules."""
    names = placing.blocks(model)
    model.requires_grad_(False)
    for name in names[-ACTIVE["freeze"] :]:
        model.get_submodule(name).requires_grad_(True)
    return model
