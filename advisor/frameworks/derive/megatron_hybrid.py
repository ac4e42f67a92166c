"""The shape of Megatron's hybrid models: a letter for each layer, ``M`` Mamba 2, ``*`` attention, ``-`` MLP, ``E`` experts.

Source: Megatron-LM at d98e8a64, core/models/hybrid/hybrid_layer_allocation.py (pattern, ``|`` between stages, ``/`` before prediction
layers) and core/transformer/transformer_config.py (defaults of the mixer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count

KNOWN = frozenset("M*-E")


def pattern_of(raw: Mapping[str, Any]) -> str:
    """The layer pattern with stages and prediction layers as written; empty where the model is no hybrid."""
    return str(raw.get("hybrid-layer-pattern") or raw.get("hybrid-override-pattern") or "").strip("'\"")


def hybrid(raw: Mapping[str, Any], hidden: int) -> dict[str, Any]:
    """Keys of a ``nemotron_h`` config.

    Raises:
        ValueError: the pattern has layers that this family has not.
    """
    main, *predicted = pattern_of(raw).replace("|", "").split("/")
    other = sorted(set("".join((main, *predicted))) - KNOWN)
    if not main or other:
        raise ValueError(f"a layer pattern with {' '.join(other) or 'no layers'}, whose shapes are not known; give the model's config.json")
    head = count(raw.get("mamba-head-dim") or 64)
    depth = len(predicted) or count(raw.get("mtp-num-layers") or 0)
    prediction = predicted[0] if predicted else str(raw.get("mtp-hybrid-override-pattern") or "")
    return {
        "model_type": "nemotron_h",
        "num_hidden_layers": len(main),
        "hybrid_override_pattern": main,
        "mamba_num_heads": count(raw.get("mamba-num-heads") or 2 * hidden // head),  # the inner width is twice the hidden one
        "mamba_head_dim": head,
        "ssm_state_size": count(raw.get("mamba-state-dim") or 128),
        "n_groups": count(raw.get("mamba-num-groups") or 8),
        "conv_kernel": 4,
        "mlp_hidden_act": "relu2" if raw.get("squared-relu") is True else "gelu",
        **(_experts(raw) if "E" in main or "E" in prediction else {}),
        **({"mtp_hybrid_override_pattern": prediction, "num_nextn_predict_layers": depth} if prediction and depth else {}),
    }


def _experts(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw.get("num-experts") is None:
        raise ValueError("layers of experts without --num-experts")
    shared = raw.get("moe-shared-expert-intermediate-size")
    return {
        "n_routed_experts": count(raw["num-experts"]),
        "num_experts_per_tok": count(raw.get("moe-router-topk") or 2),
        "moe_intermediate_size": count(raw.get("moe-ffn-hidden-size") or raw.get("ffn-hidden-size") or 4 * count(raw["hidden-size"])),
        **({"n_shared_experts": 1, "moe_shared_expert_intermediate_size": count(shared)} if shared is not None else {}),
    }
