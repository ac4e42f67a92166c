"""torchtune: builders' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.builders import FAMILIES, hub_id
from advisor.frameworks.codecs import count, flag, targets
from advisor.job import Job


def torchtune_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The name of a shipped config: ``llama3_1/8B_lora``, ``qwen2_5/7B_full``."""
    match = re.fullmatch(r"(\w+)/([\d.]+B)_(full|lora|qlora|dora)\w*", str(next(iter(raw.values()))))
    if match is None or match.group(1) not in FAMILIES:
        return {}
    family, size, kind = match.groups()
    found: dict[str, Any] = {"model.name": hub_id(family, size)}
    found["method.kind"] = {"full": "full", "dora": "dora"}.get(kind, "lora")
    if kind == "qlora":
        found["method.base"] = "nf4"
    return found


def torchtune_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A builder's name: ``torchtune.models.llama3_1.qlora_llama3_1_8b`` says the model, that adapters are trained, and on which base."""
    component = str(raw.get("model._component_") or "")
    match = re.fullmatch(r"torchtune\.models\.(\w+)\.(q?lora_)?(\w+?)(_instruct|_base)?", component)
    if match is None:
        return {}
    family, adapter, builder, _ = match.groups()
    found: dict[str, Any] = {}
    size = re.search(r"(?<![\d_])(\d+(?:_\d+)?)(b|m)$", builder.removeprefix(family).lstrip("_"))
    if family in FAMILIES and (size or family in ("phi3", "phi4", "llama4")):
        text = f"{size.group(1).replace('_', '.')}{size.group(2).upper()}" if size else ""
        found["model.name"] = hub_id(family, text)
    if adapter:
        found["method.kind"] = "dora" if raw.get("model.use_dora") is not None and flag(raw["model.use_dora"]) else "lora"
        found["method.base"] = "nf4" if adapter == "qlora_" or (raw.get("model.quantize_base") is not None and flag(raw["model.quantize_base"])) else "none"
        modules = tuple(raw.get("model.lora_attn_modules") or ())
        mlp = raw.get("model.apply_lora_to_mlp") is not None and flag(raw["model.apply_lora_to_mlp"])
        names = tuple("o_proj" if m == "output_proj" else str(m) for m in modules) + (("gate_proj", "up_proj", "down_proj") if mlp else ())
        if names:
            found["method.targets"] = targets(list(names))
    elif family in FAMILIES:
        found["method.kind"] = "full"
    return found


def torchtune_update(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Samples of one backward pass where the recipe generates first: ``batch_size`` counts prompts there."""
    update, samples = raw.get("ppo_batch_size"), raw.get("grpo_samples")
    if update is not None:
        return {"batch.micro_batch": max(1, count(update) // max(1, count(raw.get("gradient_accumulation_steps") or 1)))}
    if samples is not None and raw.get("batch_size") is not None:
        return {"batch.micro_batch": count(raw["batch_size"]) * count(samples)}
    return {}


def torchtune_generated(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt's bound and what is generated after it, where a recipe generates at all."""
    generated = raw.get("max_generated_tokens") or raw.get("inference.max_generated_tokens")
    prompt = raw.get("tokenizer.max_seq_len")
    return {"batch.seq_len": count(prompt) + count(generated)} if generated is not None and prompt is not None else {}


_BUILDERS = {  # hub id up to its size -> the family's module; families whose builders are named family_size
    "meta-llama/Llama-2-": "llama2", "meta-llama/Meta-Llama-3-": "llama3", "meta-llama/Llama-3.1-": "llama3_1", "meta-llama/Llama-3.2-": "llama3_2",
    "meta-llama/Llama-3.3-": "llama3_3", "mistralai/Mistral-": "mistral", "google/gemma-2-": "gemma2", "google/gemma-": "gemma",
}  # fmt: skip


def write_torchtune_model(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The builder with adapters (and on a quantised base), and which projections carry them."""
    method, name = after.method, after.model.name or ""
    prefix = next((p for p in _BUILDERS if name.startswith(p)), None)
    size = re.match(r"(\d+(?:\.\d+)?)[bB]", name.removeprefix(prefix)) if prefix else None
    if prefix is None or size is None or not wanted.keys() & {"method.kind", "method.base"}:
        return {}
    family = _BUILDERS[prefix]
    adapter = "" if method.kind == "full" else "qlora_" if method.base == "nf4" else "lora_"
    found: dict[str, Any] = {"model._component_": f"torchtune.models.{family}.{adapter}{family}_{size.group(1).replace('.', '_')}b"}
    if adapter:
        attention = ["q_proj", "v_proj"] if method.targets == "qv" else ["q_proj", "k_proj", "v_proj", "output_proj"]
        found |= {"model.lora_attn_modules": attention, "model.apply_lora_to_mlp": method.targets == "all-linear"}
        if method.kind == "dora":
            found["model.use_dora"] = True
    return found
