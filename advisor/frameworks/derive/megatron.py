"""Megatron and MPT: recomputation, and the model's shape from flags."""

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


def megatron_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The model's shape from Megatron's flags, in the keys of a Hugging Face config."""
    layers, hidden, heads = (raw.get(k) for k in ("num-layers", "hidden-size", "num-attention-heads"))
    if layers is None or hidden is None or heads is None:
        return {}
    gated = raw.get("swiglu") is True
    config: dict[str, Any] = {
        "model_type": "llama" if gated else "gpt2",
        "num_hidden_layers": count(layers),
        "hidden_size": count(hidden),
        "num_attention_heads": count(heads),
        "num_key_value_heads": count(raw.get("num-query-groups") or heads) if raw.get("group-query-attention") else count(heads),
        "intermediate_size": count(raw.get("ffn-hidden-size") or 4 * count(hidden)),
        "tie_word_embeddings": raw.get("untie-embeddings-and-output-weights") is not True,
    }
    vocabulary = raw.get("padded-vocab-size") or raw.get("vocab-size")
    if vocabulary is None or raw.get("num-experts") is not None or raw.get("multi-latent-attention"):
        return {}  # without a vocabulary, or with experts, the flags alone do not give the shape
    config["vocab_size"] = count(vocabulary)
    if not gated:
        config |= {"n_embd": config["hidden_size"], "n_layer": config["num_hidden_layers"], "n_head": config["num_attention_heads"]}
        config["n_positions"] = count(raw.get("max-position-embeddings") or 1024)
        config["n_inner"] = config["intermediate_size"]
    elif raw.get("max-position-embeddings") is not None:
        config["max_position_embeddings"] = count(raw["max-position-embeddings"])
    return {"model.config": config, "model.source": "megatron"}


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
