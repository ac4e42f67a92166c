"""The job of a live run, read off its model, optimizer and batch: shapes, dtypes and settings, never a name of the user's or a value of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from advisor.measurement.watching import configured
from advisor.measurement.watching.owned import short
from advisor.object_kinds import attention_name, base_layout, optimizer_name

_PRIVATE = ("name_or_path", "id2label", "label2id", "task_specific_params", "auto_map", "custom_pipelines")  # paths, labels and code of the user
_WIDE = ("fp32", "bf16", "fp16")
MAX_LIST = 512  # entries of a list in a config (layer types of every layer): longer ones are no shape


def described(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, *, tokens: tuple[int, int] | None, forwards: int | None, recomputes: bool | None,
    autocast: torch.dtype | None, framework: str,
) -> dict[str, Any]:  # fmt: skip
    """A job file's content. ``tokens``: [micro_batch, seq_len] of a forward pass; ``forwards``: of one optimizer step; ``recomputes``: as observed."""
    found: dict[str, Any] = {
        "version": 1, "model": _model(model), "method": _method(model), "precision": _precision(model, autocast), "optimizer": _optimizer(optimizer),
        "batch": _known(micro_batch=tokens and tokens[0], seq_len=tokens and tokens[1], gradient_accumulation=forwards),
        "activations": _activations(model, recomputes), "parallel": _parallel(model), "hardware": _hardware(),
        "framework": {"name": framework, "versions": _versions()},
    }  # fmt: skip
    return {key: value for key, value in found.items() if value != {}}


def shape_of(inputs: Iterable[Any]) -> tuple[int, int] | None:
    """[micro_batch, seq_len] of the first tensor that looks like tokens (whole numbers, two sides), else of embeddings (three sides)."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    for tensor in tensors:
        if tensor.dim() == 2 and not tensor.is_floating_point():
            return int(tensor.shape[0]), int(tensor.shape[1])
    return next(((int(t.shape[0]), int(t.shape[1])) for t in tensors if t.dim() == 3), None)


def autocast_of(inputs: Iterable[Any]) -> torch.dtype | None:
    """The dtype that autocast computes in on the inputs' device, where it is on."""
    device = next((t.device.type for t in inputs if isinstance(t, torch.Tensor)), None)
    return torch.get_autocast_dtype(device) if device is not None and torch.is_autocast_enabled(device) else None


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _model(model: torch.nn.Module) -> dict[str, Any]:
    config: Any = getattr(model, "config", None)
    written = config.to_dict() if hasattr(config, "to_dict") else config if isinstance(config, Mapping) else None
    return {} if not written or "model_type" not in written else {"config": _shapes(written)}


def _shapes(config: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if any(word in str(key) for word in _PRIVATE) or value is None:
            continue
        if isinstance(value, Mapping):
            if depth < 3:
                found[str(key)] = _shapes(value, depth + 1)
        elif isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 100):
            found[str(key)] = value
        elif isinstance(value, (list, tuple)) and len(value) <= MAX_LIST and all(isinstance(v, (bool, int, float, str)) for v in value):
            found[str(key)] = list(value)
    return found


def _method(model: torch.nn.Module) -> dict[str, Any]:
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping) and adapters:
        config = next(iter(adapters.values()))
        rank, targets = getattr(config, "r", None), getattr(config, "target_modules", None)
        names = sorted(targets) if isinstance(targets, (set, list, tuple)) else None
        dropout = getattr(config, "lora_dropout", None)
        kind = "dora" if getattr(config, "use_dora", False) else "lora"
        return _known(kind=kind, rank=rank, targets=names, dropout=dropout, adapters=len(adapters), base=base_layout(model))
    trained = {p.requires_grad for p in model.parameters()}
    return {} if not trained else {"kind": "full" if trained == {True} else "freeze"}


def _precision(model: torch.nn.Module, autocast: torch.dtype | None) -> dict[str, Any]:
    weights, gradients = (_widest_share(p for p in model.parameters() if not trained or p.requires_grad) for trained in (False, True))
    compute = short(autocast) if autocast is not None else None
    return _known(weights=weights, gradients=gradients, mixed="autocast" if compute else "none", compute=compute or weights)


def _widest_share(parameters: Iterable[torch.Tensor]) -> str | None:
    sizes: dict[str, int] = {}
    for parameter in parameters:
        if parameter.is_floating_point():
            sizes[short(parameter.dtype)] = sizes.get(short(parameter.dtype), 0) + parameter.numel()
    most = max(sizes, key=lambda name: sizes[name], default=None)
    return most if most in _WIDE else None


def _optimizer(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    if optimizer is None:
        return {}
    name, defaults = optimizer_name(optimizer), optimizer.defaults
    if name in ("sgd", "sgd-momentum"):
        return {"name": name}
    kind = "fused" if defaults.get("fused") else "for-loop" if defaults.get("foreach") is False else None
    states = {short(v.dtype) for s in optimizer.state.values() if isinstance(s, dict) for v in s.values() if isinstance(v, torch.Tensor) and v.numel() > 1}
    only = next(iter(states)) if len(states) == 1 else None
    return _known(name=name, states=only if only in (*_WIDE, "int8") else None, implementation=kind)


def _activations(model: torch.nn.Module, recomputes: bool | None) -> dict[str, Any]:
    on = configured.checkpointing(model) is not None if recomputes is None else recomputes
    return _known(checkpointing="full" if on else "none", attention=attention_name(model))


def _parallel(model: torch.nn.Module) -> dict[str, Any]:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return {"strategy": "none"}
    ranks = dist.get_world_size()
    if any(hasattr(p, "_local_tensor") for p in model.parameters()):
        return {"strategy": "fsdp2", "shard": ranks}
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    return {"strategy": "fsdp1", "shard": ranks} if wrapped else {"strategy": "ddp", "shard": 1, "replicate": ranks}


def _hardware() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    from advisor import cards

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    card = cards.find(seen.name, seen.total_memory)
    gpu = card.id if card is not None else {"name": seen.name[:200], "memory_gib": round(seen.total_memory / 2**30, 3)}
    return {"gpu": gpu, "gpus_per_node": torch.cuda.device_count()}


def _versions() -> dict[str, str]:
    import sys

    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("torch", "transformers", "accelerate", "trl", "peft", "deepspeed")}
    return {name: version for name, version in loaded.items() if isinstance(version, str)}
