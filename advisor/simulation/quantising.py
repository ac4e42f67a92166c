"""Turns a model's linear layers into the stand-ins of a quantised base, as transformers does when it loads one."""

from __future__ import annotations

from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import bitsandbytes, gptq

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS = {"nf4", "fp4", "int8", "gptq-int4"}
GROUP = 128  # weights that share a scale in GPTQ checkpoints, where the job does not say


def quantise(model: torch.nn.Module, job: Job, compute: torch.dtype) -> None:
    """Replace every linear layer but the output head.

    Source: transformers integrations/bitsandbytes.py ``replace_with_bnb_linear``, ``get_keys_to_not_convert``: the head stays as it is.

    Raises:
        CannotProbe: a layout without a stand-in.
    """
    base = job.method.base
    if base in (None, "none"):
        return
    if base not in LAYOUTS:
        raise CannotProbe(f"the probe has no stand-in for a {base} base yet: the estimate stands in")
    storage = DTYPES[job.precision.weights or "bf16"] if sharded(job) else torch.uint8  # FSDP flattens floats only: bnb_4bit_quant_storage
    anymodel: Any = model
    head = anymodel.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if module is head or not (isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        new: torch.nn.Module
        if base == "gptq-int4":
            if not isinstance(module, torch.nn.Linear):
                raise CannotProbe("the probe has no stand-in for GPTQ in other layers than nn.Linear: the estimate stands in")
            new = gptq.QuantLinear(module, group=job.method.group_size or GROUP, shard_as=storage if sharded(job) else None)
        elif base == "int8":
            new = bitsandbytes.Linear8bitLt(module)
        else:
            double = job.method.double_quant is not False
            new = bitsandbytes.Linear4bit(module, quant_type=base, double=double, compute_dtype=compute, storage=storage)
        setattr(parent, name.rpartition(".")[2], new)
    anymodel.quantization_method = "gptq" if base == "gptq-int4" else "bitsandbytes"
    anymodel.is_loaded_in_4bit, anymodel.is_loaded_in_8bit, anymodel.is_quantized = base != "int8", base == "int8", True
    held = DTYPES[job.precision.weights or "bf16"]
    anymodel.config._pre_quantization_dtype, anymodel.config._is_quantized = held, True  # what flash attention casts fp32 activations to
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def sharded(job: Job) -> bool:
    """Whether FSDP divides the base: then TRL neither prepares it nor casts (sft_trainer.py ``is_sharded_qlora``, read in 0.11.4 and 0.13.0)."""
    return job.parallel.strategy in ("fsdp1", "fsdp2") and (job.parallel.shard or 1) > 1


def prepare_for_kbit(model: torch.nn.Module) -> None:
    """peft's preparation: what is not quantised becomes fp32 and frozen (peft utils/other.py ``prepare_model_for_kbit_training``)."""
    widened = getattr(model, "quantization_method", None) != "gptq"  # what GPTQ left in 16 bit stays so
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if widened and parameter.dtype in (torch.float16, torch.bfloat16) and not isinstance(parameter, bitsandbytes.Params4bit):
            parameter.data = parameter.data.to(torch.float32)


def trl_casts(model: torch.nn.Module, job: Job) -> None:
    """TRL's trainers under bf16 with a 4-bit base: norms in fp32, head and embeddings back in bf16 (``peft_module_casting_to_bf16``).

    Read in TRL 0.11.4, 0.13.0, 0.16.0, 0.19.0, 0.21.0 and 0.24.0; 1.16.0 no longer does it.
    """
    four_bit = job.method.base in ("nf4", "fp4") and bool(job.method.kbit_preparation)
    if (
        job.framework.name != "trl"
        or not four_bit
        or job.precision.compute != "bf16"
        or job.precision.mixed != "autocast"
        or not _before_1(job)
        or sharded(job)
    ):
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.LayerNorm) or "norm" in name:
            module.to(torch.float32)
        elif any(part in name for part in ("lm_head", "embed_tokens", "wte", "wpe")):
            weight = getattr(module, "weight", None)
            if weight is not None and weight.dtype == torch.float32:
                module.to(torch.bfloat16)


def _before_1(job: Job) -> bool:
    return str((job.framework.versions or {}).get("trl", "1")).startswith("0.")
