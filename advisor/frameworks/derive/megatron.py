"""Megatron: recomputation and offloading; MPT: the model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count, names
from advisor.job import Job


def megatron_recompute(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``--recompute-granularity``, ``--recompute-method``, ``--recompute-modules``."""
    granularity = str(raw.get("recompute-granularity") or "").lower()
    if raw.get("recompute-activations") is True and not granularity:
        granularity = "selective"
    if granularity == "full":
        return {"activations.checkpointing": "full"}
    if granularity == "selective":
        modules = raw.get("recompute-modules") or "core_attn"
        return {"activations.checkpointing": "selective", "activations.selective": {"ops": names(modules)}}
    off = granularity == "none" or ("recompute-granularity" in raw and raw["recompute-granularity"] is None)
    return {"activations.checkpointing": "none"} if off else {}


def recompute_spread(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``uniform`` with one layer a part keeps each layer's input, as full recomputation is counted.

    Raises:
        ValueError: parts of several layers, or only some of the layers; the job has no word for these.
    """
    found = {key.rsplit(".", 1)[-1].replace("-", "_"): value for key, value in raw.items() if value is not None}
    method, layers = str(found.get("recompute_method") or "").lower(), found.get("recompute_num_layers")
    if method == "uniform" and (layers is None or count(layers) == 1):
        return {}
    if found:
        raise ValueError(f"which layers are recomputed together ({method or 'no method'}, {layers if layers is not None else 'no number of'} layers)")
    return {}


def write_megatron_recompute(_wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """Granularity, and the modules of a selective one."""
    kind = after.activations.checkpointing
    if kind == "full":
        return {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if kind == "selective":
        ops = after.activations.selective.ops if after.activations.selective else None
        return {"recompute-granularity": "selective", **({"recompute-modules": list(ops)} if ops else {})}
    return {}


def mpt_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of an MPT model from LLM Foundry's keys."""
    if raw.get("model.name") != "mpt_causal_lm" or any(raw.get(f"model.{k}") is None for k in ("d_model", "n_heads", "n_layers", "vocab_size")):
        return {}
    config = {k.removeprefix("model."): v for k, v in raw.items() if k != "model.name" and v is not None}
    return {"model.config": {"model_type": "mpt", **config}}


def megatron_offload(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``--fine-grained-activation-offloading --offload-modules core_attn ...``."""
    if raw.get("fine-grained-activation-offloading") is not True:
        return {}
    modules = names(raw["offload-modules"]) if raw.get("offload-modules") else ()
    return {"offload.activations": "cpu", **({"offload.activation_modules": modules} if modules else {})}


def write_megatron_offload(_wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The switch, and the modules."""
    if after.offload.activations != "cpu":
        return {}
    return {"fine-grained-activation-offloading": True, "offload-modules": list(after.offload.activation_modules or ("core_attn",))}
