"""LitGPT: projections, checkpoints by folder, accumulation by total."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, flag, targets
from advisor.job import Job

_LITGPT = {"lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj", "lora_projection": "o_proj"}


def litgpt_targets(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A switch for each projection; ``lora_mlp`` is all of the block's."""
    on = [name for key, name in _LITGPT.items() if raw.get(key) is not None and flag(raw[key])]
    if raw.get("lora_mlp") is not None and flag(raw["lora_mlp"]):
        on += ["gate_proj", "up_proj", "down_proj"]
    if raw.get("lora_head") is not None and flag(raw["lora_head"]):
        on.append("lm_head")
    return {"method.targets": targets(on)} if on else {}


def checkpoint_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    """litgpt keeps a checkpoint under its hub id: ``checkpoints/meta-llama/Llama-2-7b-hf``."""
    parts = [p for p in str(next(iter(raw.values()))).split("/") if p]
    if len(parts) < 2 or parts[-2] in ("tmp", "out", "checkpoints", "..", "."):
        return {"model.name": parts[-1]} if len(parts) > 1 or (parts and re.search(r"\d[bBmM]?\b", parts[-1])) else {}
    return {"model.name": f"{parts[-2]}/{parts[-1]}"}


def accumulation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Samples of a step over the micro batch and the ranks."""
    total, micro = raw.get("train.global_batch_size"), raw.get("train.micro_batch_size")
    devices = raw.get("devices") or 1
    if total is None or micro is None or not str(devices).isdigit():
        return {}
    steps = count(total) // (count(micro) * count(devices) * count(raw.get("num_nodes") or 1))
    return {"batch.gradient_accumulation": steps} if steps >= 1 else {}


def write_litgpt_targets(_wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The switches that are off by default (query and value are on)."""
    if after.method.targets not in ("all-linear", "attention"):
        return {}
    names = ["lora_query", "lora_key", "lora_value", "lora_projection", *(["lora_mlp"] if after.method.targets == "all-linear" else [])]
    return dict.fromkeys(names, True)
