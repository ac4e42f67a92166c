"""What live objects are, in the job file's words: by the names of their classes and the marks that libraries leave on a model. Imports nothing of theirs."""

from __future__ import annotations

from typing import Any

ATTENTION = {"flash_attention_2": "flash-2", "flash_attention_3": "flash-3", "sdpa": "sdpa", "eager": "eager", "flex_attention": "flex"}
# Names of optimizer classes: torch.optim, transformers.optimization, bitsandbytes.optim (its optim/__init__.py), torchao.optim, galore_torch, deepspeed.ops
_OPTIMIZERS = {
    "adamw": "adamw", "adam": "adamw", "fusedadam": "adamw", "adamw32bit": "adamw", "adamw8bit": "adamw-8bit", "adam8bit": "adamw-8bit",
    "pagedadamw": "paged-adamw", "pagedadamw32bit": "paged-adamw", "pagedadamw8bit": "paged-adamw-8bit", "pagedadam8bit": "paged-adamw-8bit",
    "adamw4bit": "adamw-4bit", "adafactor": "adafactor", "sgd": "sgd", "lion": "lion", "muon": "muon", "galoreadamw": "galore-adamw",
    "deepspeedcpuadam": "cpu-adam",
}  # fmt: skip


def optimizer_name(optimizer: Any) -> str | None:
    """The job file's name of an optimizer; ``None`` where its class is not known. SGD with momentum keeps a buffer, so it is another one."""
    name = _OPTIMIZERS.get(type(optimizer).__name__.lower().replace("_", ""))
    return "sgd-momentum" if name == "sgd" and any(group.get("momentum") for group in optimizer.param_groups) else name


def attention_name(model: Any) -> str | None:
    """The attention that transformers chose (``config._attn_implementation``)."""
    return ATTENTION.get(str(getattr(getattr(model, "config", None), "_attn_implementation", "")))


def base_layout(model: Any) -> str | None:
    """How bitsandbytes holds the base: transformers marks the model, and its config keeps the type (fp4 unless told)."""
    if getattr(model, "is_loaded_in_4bit", False):
        kind = getattr(getattr(getattr(model, "config", None), "quantization_config", None), "bnb_4bit_quant_type", "fp4")
        return kind if kind in ("nf4", "fp4") else "nf4"
    return "int8" if getattr(model, "is_loaded_in_8bit", False) else None
