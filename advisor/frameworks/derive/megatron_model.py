"""A model's shape from Megatron's flags, in the keys of a Hugging Face config. Read in megatron-core 0.20, training/arguments.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.frameworks.derive.megatron_hybrid import hybrid, pattern_of
from advisor.job import Job

# GPT-2's byte-pair vocabulary: 256 bytes + 50,000 merges + end of text; BERT's and Llama 2's published vocabularies
ENTRIES = {"GPT2BPETokenizer": 50_257, "BertWordPieceLowerCase": 30_522, "BertWordPieceCase": 28_996, "Llama2Tokenizer": 32_000}
MOST_LAYERS = 100_000  # that are listed one by one: far above any real model
_REPEATED = re.compile(r"\[\s*([01])\s*\]\s*\*\s*(\d+)")


def megatron_sequence(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The longest of the lengths that are given: beside images ``--seq-length`` bounds the vision tower and ``--decoder-seq-length`` the language model."""
    found = [count(value) for value in raw.values() if value is not None]
    return {"batch.seq_len": max(found)} if found else {}


def write_megatron_sequence(wanted: Mapping[str, Any], _after: Job) -> dict[str, Any]:
    """The language model's length."""
    return {"seq-length": wanted["batch.seq_len"]}


def megatron_checkpoint(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's folder names its model where a size stands in it (``.../Llama-3-8B``); ``checkpoints`` names none."""
    leaf = str(next(iter(raw.values()))).rstrip("/").rsplit("/", 1)[-1]
    return {"model.name": leaf} if re.search(r"\d[bBmM](?![a-z])", leaf) and re.fullmatch(r"[\w.\-]+", leaf) else {}


def megatron_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Dense, grouped experts, experts with latent attention, and hybrids of attention and state-space layers."""
    layers, hidden, heads = (raw.get(k) for k in ("num-layers", "hidden-size", "num-attention-heads"))
    vocabulary, pattern = _vocabulary(raw), pattern_of(raw)
    if (layers is None and not pattern) or hidden is None or heads is None or vocabulary is None:
        return {}
    if raw.get("heterogeneous-layers-config-path") is not None:
        raise ValueError("layers of several kinds, whose shapes these flags do not give; give the model's config.json")
    if raw.get("spec") is not None and not pattern:
        raise ValueError("modelling code of its own (--spec), whose shape these flags do not give; give the model's config.json")
    gated = raw.get("swiglu") is True or raw.get("quick-geglu") is True
    width = count(hidden)
    config: dict[str, Any] = {
        **({"num_hidden_layers": count(layers)} if layers is not None else {}),
        "hidden_size": width,
        "num_attention_heads": count(heads),
        "num_key_value_heads": count(raw.get("num-query-groups") or heads) if raw.get("group-query-attention") else count(heads),
        "intermediate_size": count(raw.get("ffn-hidden-size") or (int(4 * width * 2 / 3 / 64) * 64 if gated else 4 * width)),
        "tie_word_embeddings": raw.get("untie-embeddings-and-output-weights") is not True,
        "vocab_size": vocabulary,
        "attention_dropout": _dropout(raw.get("attention-dropout")),
        "hidden_dropout": _dropout(raw.get("hidden-dropout")),
    }
    if raw.get("kv-channels") is not None:
        config["head_dim"] = count(raw["kv-channels"])
    if raw.get("max-position-embeddings") is not None:
        config["max_position_embeddings"] = count(raw["max-position-embeddings"])
    if pattern:
        return _found(config | hybrid(raw, width))
    if raw.get("multi-latent-attention") is True:
        experts = _routed(raw, config) if raw.get("num-experts") is not None else {"first_k_dense_replace": config["num_hidden_layers"]}
        return _found(config | _latent(raw) | experts, plain=not gated)
    if raw.get("num-experts") is not None:
        return _found(config | _experts(raw, config), plain=not gated)
    if gated:
        return _found({"model_type": "llama", **config})
    return _found(_plain(config, learned=str(raw.get("position-embedding-type") or "learned_absolute") == "learned_absolute"))


def _plain(config: dict[str, Any], *, learned: bool) -> dict[str, Any]:
    """A decoder with a plain MLP, biases and layer norms: GPT-2 where it has a table of positions and a key for every head, else StarCoder2."""
    if not learned or config["num_key_value_heads"] != config["num_attention_heads"]:
        return {"model_type": "starcoder2", "use_bias": True, "hidden_act": "gelu_pytorch_tanh", "residual_dropout": config["hidden_dropout"], **config}
    own = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size"}
    dropped = {"attn_pdrop": config["attention_dropout"], "resid_pdrop": config["hidden_dropout"]}
    return {"model_type": "gpt2", **config, **{k: config[v] for k, v in own.items()}, "n_positions": config.get("max_position_embeddings", 1024), **dropped}


def _dropout(raw: Any) -> float:
    """``--attention-dropout`` and ``--hidden-dropout`` are 0.1 unless told (transformer_config.py)."""
    return 0.1 if raw is None else float(raw)


def _found(config: dict[str, Any], *, plain: bool = False) -> dict[str, Any]:
    return {"model.config": config, "model.source": "megatron", **({"model.mlp": "plain"} if plain else {})}


def _vocabulary(raw: Mapping[str, Any]) -> int | None:
    """Rows of the embedding: the tokenizer's entries, padded to a multiple that the tensor group divides (``vocab_size_with_padding``)."""
    if raw.get("padded-vocab-size") is not None:
        return count(raw["padded-vocab-size"])
    entries = raw.get("vocab-size")
    kind = str(raw.get("tokenizer-type") or ("GPT2BPETokenizer" if raw.get("merge-file") else None))  # merges are those of GPT-2's tokenizer
    if entries is None:
        entries = ENTRIES.get(kind) or _of_tokenizer(raw.get("tokenizer-model") or raw.get("hf-checkpoint"))
    if entries is None:
        return None
    if kind == "NullTokenizer":
        entries = count(entries) + 1  # its end-of-document token
    multiple = count(raw.get("make-vocab-size-divisible-by") or 128) * count(raw.get("tensor-model-parallel-size") or 1)
    return math.ceil(count(entries) / multiple) * multiple


def _of_tokenizer(name: Any) -> int | None:
    """The vocabulary of the model that a tokenizer is named after, where that model is known."""
    if not isinstance(name, str) or "/" not in name:
        return None
    from advisor.architecture import presets  # the catalogue of models is read only where a command line leaves the vocabulary out

    preset = presets.find(name)
    value = preset.config.get("vocab_size") if preset is not None else None
    return value if isinstance(value, int) else None


def _dense_layers(raw: Mapping[str, Any], layers: int) -> list[int]:
    """Layers without experts, of ``--moe-layer-freq``: every nth has them, or a list such as ``([0]*3+[1]*58)``.

    Raises:
        ValueError: more layers than can be listed.
    """
    if layers > MOST_LAYERS:
        raise ValueError(f"{layers:,} layers are more than any model has")
    if raw.get("moe-layer-freq") is None and raw.get("FIRST_K_DENSE_REPLACE") is not None:  # scripts build the list from it in a loop
        return list(range(min(count(raw["FIRST_K_DENSE_REPLACE"]), layers)))
    text = str(raw.get("moe-layer-freq") or "1").strip("'\" ")
    if text.isdigit():
        every = max(int(text), 1)
        return [i for i in range(layers) if i % every]
    pattern = [int(v) for v, times in _REPEATED.findall(text) for _ in range(min(int(times), 1_000))] or [int(v) for v in re.findall(r"[01]", text)]
    return [i for i, v in enumerate(pattern[:layers]) if not v]


def _sizes(raw: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, int, int]:
    """(width of an expert, experts of a token, width of what all tokens share)."""
    shared = raw.get("moe-shared-expert-intermediate-size")
    return count(raw.get("moe-ffn-hidden-size") or config["intermediate_size"]), count(raw.get("moe-router-topk") or 2), count(shared) if shared else 0


def _experts(raw: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    width, chosen, shared = _sizes(raw, config)
    return {
        "model_type": "qwen2_moe" if shared else "qwen3_moe",
        "num_experts": count(raw["num-experts"]),
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": _dense_layers(raw, config["num_hidden_layers"]),
        **({"shared_expert_intermediate_size": shared} if shared else {}),
    }


def _latent(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Multi-head latent attention; defaults of ``MLATransformerConfig`` and of the arguments."""
    return {
        "model_type": "deepseek_v3",
        "q_lora_rank": count(raw["q-lora-rank"]) if raw.get("q-lora-rank") is not None else None,
        "kv_lora_rank": count(raw.get("kv-lora-rank") or 32),
        "qk_nope_head_dim": count(raw.get("qk-head-dim") or 128),
        "qk_rope_head_dim": count(raw.get("qk-pos-emb-head-dim") or 64),
        "v_head_dim": count(raw.get("v-head-dim") or 128),
        **({"num_nextn_predict_layers": count(raw["mtp-num-layers"])} if raw.get("mtp-num-layers") is not None else {}),
    }


def _routed(raw: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    width, chosen, shared = _sizes(raw, config)
    return {
        "n_routed_experts": count(raw["num-experts"]),
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "n_shared_experts": max(1, shared // width) if shared else 0,
        "first_k_dense_replace": len(_dense_layers(raw, config["num_hidden_layers"])),
    }
