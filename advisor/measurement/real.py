"""The job's model and optimizer with the libraries' own layers, on a device: what the probe has stand-ins for is the real thing here, or is refused.

The shape is built on meta, the base is quantised layer by layer, as loading does it, and the rest is made where it will live: so nothing larger
than what stays is ever on the device, and what FSDP divides is divided before it is made.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from advisor.job import Job
from advisor.run import Run
from advisor.simulation import building, optimizers, quantising
from advisor.simulation.patching import patched
from advisor.simulation.request import CannotProbe
from advisor.simulation.standins import bitsandbytes as stand_ins
from advisor.simulation.standins import packages

SPREAD = 0.02  # standard deviation of the random weights: initializer_range of most configs
EIGHT_BIT = {"adamw-8bit": "AdamW8bit", "paged-adamw-8bit": "PagedAdamW8bit", "paged-adamw": "PagedAdamW32bit"}
_PACKAGES = {"flash-2": ("flash_attn", "flash_attention_2"), "flash-3": ("flash_attn_interface", "flash_attention_3")}
_OWN_EMBEDDINGS = frozenset({"hf-trainer", "trl", "axolotl", "llama-factory", "ms-swift"})  # Trainer asks for 32-bit states of embeddings


def refuse(job: Job) -> None:
    """What this can not run as the job's own software would.

    Raises:
        CannotProbe: naming it.
    """
    why = None
    if job.model.vision is not None:
        why = "images beside the text"
    elif job.model.source not in (None, "huggingface", "remote-code"):
        why = f"{job.model.source}'s own modelling code"
    elif job.method.base not in (None, "none", "nf4", "fp4", "int8"):
        why = f"a {job.method.base} base with random weights"
    elif job.activations.checkpointing == "selective":
        why = "selective checkpointing, which each framework does in its own way"
    if why is not None:
        raise CannotProbe(f"a measurement does not run {why}: watch the real run with advisor.watch")


def shape(run: Run, device: str, *, own_loss: bool = False) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The model as it will be, on meta but for a quantised base, which is on ``device``; and what runs otherwise than the job says.

    ``own_loss``: the framework's own loop brings its own loss.

    Raises:
        CannotProbe: it can not be built, or a library that it needs is not installed here.
    """
    job = run.effective
    refuse(job)
    attention, notes = _attention(job, device)
    base = job.method.base not in (None, "none")
    if base and find_spec("bitsandbytes") is None:
        raise CannotProbe(f"a {job.method.base} base is bitsandbytes', which is not installed here: pip install bitsandbytes")

    def quantise(model: torch.nn.Module, job: Job, compute: torch.dtype) -> None:
        if base:
            _quantise(model, job, compute, device)

    own = {**building.ATTENTION, job.activations.attention or "sdpa": attention}
    four_bit = import_module("bitsandbytes").nn.Params4bit if base else stand_ins.Params4bit  # what peft's preparation leaves as it is
    with patched([
        (packages, "offer", lambda _: None), (building, "ATTENTION", own), (quantising, "quantise", quantise), (stand_ins, "Params4bit", four_bit),
    ]):  # fmt: skip
        return building.build(run), notes + _unlike(job, own_loss=own_loss)


def fill(model: torch.nn.Module, device: str) -> None:
    """Make everything that is still on meta on the device: random weights, and buffers that no kernel minds. Tied tensors stay tied."""
    made: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    if id(parameter) not in made:
                        values = torch.empty_like(parameter, device=device)
                        weight = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
                        _random(weight, name)
                        made[id(parameter)] = weight
                    module._parameters[name] = made[id(parameter)]  # type: ignore[assignment]
            for name, value in (*module._buffers.items(), *vars(module).items()):
                if isinstance(value, torch.Tensor) and value.is_meta:
                    if id(value) not in made:
                        made[id(value)] = _buffer(value, device)
                    (module._buffers if name in module._buffers else vars(module))[name] = made[id(value)]
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)


def optimizer(model: torch.nn.Module, job: Job) -> torch.optim.Optimizer:
    """The job's optimizer over what trains; bitsandbytes' own where its states are its.

    Raises:
        CannotProbe: one that is not there.
    """
    name = EIGHT_BIT.get(job.optimizer.name or "")
    if name is None:
        return optimizers.build(model, job)
    if find_spec("bitsandbytes") is None:
        raise CannotProbe(f"the optimizer {job.optimizer.name} is bitsandbytes', which is not installed here: pip install bitsandbytes")
    if job.optimizer.in_backward:
        raise CannotProbe(f"a measurement does not run {job.optimizer.name} within the backward pass")
    library: Any = import_module("bitsandbytes")
    if job.framework.name in _OWN_EMBEDDINGS:
        manager = library.optim.GlobalOptimManager.get_instance()
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    built: torch.optim.Optimizer = getattr(library.optim, name)([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    return built


def _attention(job: Job, device: str) -> tuple[str, tuple[str, ...]]:
    wanted = job.activations.attention or "sdpa"
    if wanted not in _PACKAGES:
        return building.ATTENTION.get(wanted, wanted), ()
    package, name = _PACKAGES[wanted]
    if device.startswith("cuda") and find_spec(package) is not None:
        return name, ()
    why = "a CPU has no such kernel" if not device.startswith("cuda") else f"{package} is not installed here"
    return "sdpa", (f"torch's own attention (SDPA) ran in the place of {wanted}: {why}",)


def _unlike(job: Job, *, own_loss: bool) -> tuple[str, ...]:
    """What the job says of its step and a plain model's step does not do."""
    notes = []
    if own_loss:
        notes.append(f"{job.framework.name}'s own loss ran, as the version that is installed here computes it")
    elif job.activations.loss not in (None, "full-fp32", "full"):
        notes.append(f"the model's own loss ran in the place of a {job.activations.loss} loss")
    if job.activations.kernels:
        notes.append(f"the model's own layers ran in the place of fused kernels ({', '.join(job.activations.kernels)})")
    if job.framework.name in (None, "custom") and job.objective not in (None, "sft", "pretrain"):
        notes.append(f"one model ran with a language-modelling loss; what {job.objective} adds (reference, pairs, generation) was not measured")
    return tuple(notes)


def _quantise(model: torch.nn.Module, job: Job, compute: torch.dtype, device: str) -> None:
    """Every linear layer but the head becomes bitsandbytes' own, from random weights (transformers ``replace_with_bnb_linear`` does the same)."""
    library: Any = import_module("bitsandbytes")
    anymodel: Any = model
    head = anymodel.get_output_embeddings()
    held = quantising.DTYPES[job.precision.weights or "bf16"]
    storage = held if quantising.sharded(job) else torch.uint8
    four_bit = job.method.base != "int8"
    for name, module in list(model.named_modules()):
        turned = type(module).__name__ == "Conv1D"  # [in, out]
        if module is head or not (isinstance(module, torch.nn.Linear) or turned):
            continue
        rows, columns = module.weight.shape[::-1] if turned else module.weight.shape
        weight = torch.empty(rows, columns, dtype=held if four_bit else torch.float16, device=device).normal_(std=SPREAD)
        new: Any
        with torch.device("meta"):
            if four_bit:
                double = job.method.double_quant is not False
                options = {"compress_statistics": double, "quant_type": job.method.base, "quant_storage": storage}
                new = library.nn.Linear4bit(columns, rows, module.bias is not None, compute_dtype=compute, **options)
            else:
                new = library.nn.Linear8bitLt(columns, rows, module.bias is not None, has_fp16_weights=False, threshold=6.0)
        if four_bit:
            new.weight = library.nn.Params4bit(weight, requires_grad=False, module=new, **options).to(device)
        else:
            new.weight = library.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False).to(device)
        if new.bias is not None:
            new.bias = torch.nn.Parameter(torch.empty(rows, dtype=held, device="meta"), requires_grad=False)
        model.set_submodule(name, new)
    anymodel.quantization_method = "bitsandbytes"
    anymodel.is_loaded_in_4bit, anymodel.is_loaded_in_8bit, anymodel.is_quantized = four_bit, not four_bit, True
    anymodel.config._pre_quantization_dtype, anymodel.config._is_quantized = held, True  # what flash attention casts fp32 activations to
    anymodel.hf_quantizer = _quantizer(job, compute, storage)  # Trainer asks it whether the base can be trained on
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _quantizer(job: Job, compute: torch.dtype, storage: torch.dtype) -> Any:
    import transformers

    four_bit: dict[str, Any] = {
        "load_in_4bit": True, "bnb_4bit_quant_type": job.method.base, "bnb_4bit_compute_dtype": compute, "bnb_4bit_quant_storage": storage,
        "bnb_4bit_use_double_quant": job.method.double_quant is not False,
    }  # fmt: skip
    made: Any = transformers.BitsAndBytesConfig
    config = made(**({"load_in_8bit": True} if job.method.base == "int8" else four_bit))
    return import_module("transformers.quantizers.auto").AutoHfQuantizer.from_config(config)


def _random(weight: torch.Tensor, name: str) -> None:
    """In place, of a sharded tensor's local part too: matrices random, biases 0, scales 1."""
    if not weight.is_floating_point():
        weight.zero_()
    elif weight.dim() > 1:
        weight.normal_(std=SPREAD)
    else:
        weight.fill_(0.0 if "bias" in name else 1.0)


def _buffer(value: torch.Tensor, device: str) -> torch.Tensor:
    """Positions for whole numbers, a causal mask for truths, ones for the rest: no value that breaks a step."""
    new = torch.ones_like(value, device=device)
    if value.dtype == torch.bool or value.dtype == torch.uint8:
        return new.tril_() if new.dim() > 1 else new
    if not value.is_floating_point() and not value.is_complex() and value.dim():
        return torch.arange(value.shape[-1], device=device, dtype=value.dtype).expand(value.shape).clone()
    return new
