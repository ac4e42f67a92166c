"""A model's shape in the words of trainers that build their own: GPT-NeoX, OLMo, nanotron."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.frameworks.derive.megatron_model import ENTRIES

_GATED = ("swiglu", "geglu", "reglu", "bilinear")


def neox_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """GPT-NeoX's keys; its layers are those of ``gpt_neox``, or of Llama where a gated activation and RMS norms are asked for.

    Raises:
        ValueError: a tokenizer whose vocabulary stands in no key.
    """
    layers, hidden, heads = (raw.get(k) for k in ("num_layers", "hidden_size", "num_attention_heads"))
    if layers is None or hidden is None or heads is None:
        return {}
    entries = raw.get("vocab_size") or ENTRIES.get(str(raw.get("tokenizer_type") or "GPT2BPETokenizer"))
    if entries is None:
        raise ValueError("the vocabulary is the tokenizer file's, which was not given; say the model's name")
    multiple = count(raw.get("make_vocab_size_divisible_by") or 128) * count(raw.get("model_parallel_size") or 1)
    width, gated = count(hidden), str(raw.get("activation") or "gelu") in _GATED
    inner = count(raw["intermediate_size"]) if raw.get("intermediate_size") is not None else int(float(raw.get("expansion_factor") or 4) * width)
    if gated:
        inner = _rounded(inner * 2 // 3 // 2, count(raw.get("mlp_multiple_of") or 1))  # megatron/model/transformer.py ParallelMLP: the three share its width
    config = {
        "model_type": "llama" if gated else "gpt_neox", "num_hidden_layers": count(layers), "hidden_size": width, "num_attention_heads": count(heads),
        "num_key_value_heads": count(raw.get("num_kv_heads") or heads), "intermediate_size": inner,
        "vocab_size": math.ceil(count(entries) / multiple) * multiple, "tie_word_embeddings": raw.get("no_weight_tying") is not True,
        "max_position_embeddings": count(raw.get("max_position_embeddings") or 2_048),
    }  # fmt: skip
    return {"model.config": config}


def _rounded(width: int, multiple: int) -> int:
    return multiple * math.ceil(width / multiple)


def olmo_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """OLMo's ``model`` group. ``mlp_hidden_size`` counts the gate and the input together (olmo/model.py OLMoSequentialBlock)."""
    given = {key.removeprefix("model."): value for key, value in raw.items() if value is not None}
    if any(name not in given for name in ("d_model", "n_heads", "n_layers", "vocab_size")):
        return {}
    width = count(given["d_model"])
    gated = str(given.get("activation_type") or "swiglu").lower() == "swiglu"
    inner = count(given["mlp_hidden_size"]) if "mlp_hidden_size" in given else width * count(given.get("mlp_ratio") or 4)
    config = {
        "model_type": "olmo2" if given.get("norm_after") is True else "olmo", "hidden_size": width, "num_hidden_layers": count(given["n_layers"]),
        "num_attention_heads": count(given["n_heads"]), "num_key_value_heads": count(given.get("n_kv_heads") or given["n_heads"]),
        "intermediate_size": inner // 2 if gated else inner, "vocab_size": count(given.get("embedding_size") or given["vocab_size"]),
        "tie_word_embeddings": given.get("weight_tying", True) is True, "max_position_embeddings": count(given.get("max_sequence_length") or 1_024),
    }  # fmt: skip
    return {"model.config": config}


_NANOTRON = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size", "tie_word_embeddings",
    "max_position_embeddings", "head_dim",
)  # fmt: skip


def nanotron_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """nanotron's ``model.model_config`` is spelled as a Hugging Face config; the vocabulary is padded to its multiple."""
    given = {key.rsplit(".", 1)[-1]: value for key, value in raw.items() if value is not None}
    if any(name not in given for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")):
        return {}
    config: dict[str, Any] = {"model_type": "llama", **{name: given[name] for name in _NANOTRON if name in given}}
    config["vocab_size"] = _rounded(count(given["vocab_size"]), max(1, count(given.get("make_vocab_size_divisible_by") or 1)) * count(given.get("tp") or 1))
    return {"model.config": config}


def nanotron_ranks(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The ranks that nanotron starts, on nodes of eight cards where there are more."""
    ranks = math.prod(max(1, count(value)) for value in raw.values() if value is not None)
    if raw.get("parallelism.dp") is None or (ranks > 8 and ranks % 8):
        return {}
    return {"hardware.gpus_per_node": min(ranks, 8), "hardware.nodes": max(1, ranks // 8)}
