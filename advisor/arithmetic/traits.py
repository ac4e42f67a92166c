"""How Hugging Face's modelling code differs by family where that decides what autograd keeps. Read in transformers 5.24 modeling files."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from msgspec import Struct

RotaryStyle = Literal["none", "plain", "joined", "wide"]
NormStyle = Literal["rms", "rms-both", "rms-wide", "layer", "layer-wide", "layer-float"]


class Traits(Struct, frozen=True):
    """``rotary``: how positions are applied: ``joined`` rotates a part and concatenates it with the rest (the kernel's output then needs a
    copy into the order of heads), ``wide`` in fp32. ``norm``: ``rms-wide`` multiplies by the weight in fp32, ``rms-both``
    squares an fp32 copy and scales the input itself (modeling_t5 T5LayerNorm), ``layer-wide`` is a layer norm written out in fp32.
    ``post``: the norms follow attention and MLP and nothing precedes them.
    ``layer-float``: torch's own layer norm on an fp32 copy. ``wide_qk``: the query and key norms run over all heads' width.
    ``around``: a norm takes the sum of branch and residual (BERT).
    """

    rotary: RotaryStyle = "plain"
    norm: NormStyle | None = None
    post: bool = False
    wide_qk: bool = False
    around: bool = False  # the norms take the sums
    activation: str = ""  # where the modelling code writes out what a config's word does not name
    value_norm: bool = False  # values pass an RMSNorm without a weight (modeling_gemma4 Gemma4TextAttention.v_norm)
    bare_qk: bool = False  # query and key norms have no weight (modeling_llama4 Llama4TextL2Norm)
    wide_router: bool = False  # the router multiplies an fp32 copy of its input by an fp32 copy of its weight
    wide_weights: bool = False  # the router gives its weights as fp32, which widens the experts' output
    all_experts: bool = False  # every expert computes every token, those not chosen on zeros (modeling_llama4 Llama4TextMoe)
    parts_copied: bool = False  # query, key and value are taken out of a fused projection by copies, not views (modeling_codegen: interleaved shards)
    heads_first: bool = False  # query, key and value are made contiguous heads first, so the kernel's output is too (modeling_whisper WhisperAttention)
    wide_scores: bool = False  # queries and keys are made fp32 before their product (modeling_gpt_neo GPTNeoSelfAttention._attn)
    returns_weights: bool = False  # eager code whose block returns its attention weights whether asked for or not (modeling_{bloom,mpt,gpt_neo})
    inner_dropout: bool = False  # dropout between activation and down projection too (modeling_t5 T5DenseGatedActDense)


_PARTIAL = frozenset({
    "phi", "phi3", "gpt_neox", "gpt_neox_japanese", "stablelm", "persimmon", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "nemotron", "minimax_m2",
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "mimo_v2_flash", "glm4v", "bamba", "phi4_multimodal",
})  # fmt: skip
_WIDE_WEIGHT = frozenset({
    "gemma", "gemma2", "gemma3", "gemma3_text", "olmo2", "olmo3", "flex_olmo", "gpt_oss", "qwen3_next", "qwen3_5", "qwen3_5_moe", "recurrent_gemma",
    "t5gemma", "vaultgemma", "afmoe", "olmo_hybrid", "gemma4", "gemma4_text", "gemma3n", "gemma3n_text", "qwen3_5_text", "qwen3_5_moe_text",
    "helium", "paligemma",
})  # fmt: skip
_POST = frozenset({"olmo2", "olmo3", "flex_olmo"})
_AROUND = frozenset({"bert", "roberta", "xlm-roberta", "electra", "distilbert", "camembert", "albert", "mpnet", "ernie", "opt-350m"})
_INNER_DROPOUT = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers"})
_WIDE_LAYER = frozenset({"cohere", "cohere2", "cohere2_moe"})
_FLOAT_LAYER = frozenset({"olmo"})
_VALUE_NORM = frozenset({"gemma4", "gemma4_text", "gemma3n", "gemma3n_text"})
_BARE_QK = frozenset({"llama4", "llama4_text"})
_WIDE_ROUTER = frozenset({
    "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite", "ernie4_5_moe", "nemotron_h", "dots1", "exaone_moe", "hy_v3", "solar_open",
    "mimo_v2_flash", "sarvam_moe", "sarvam_mla", "axk1", "kolibri1", "flint",
})  # fmt: skip
_WIDE_WEIGHTS = (_WIDE_ROUTER - {"ernie4_5_moe"}) | {
    "mixtral", "minimax", "minimax_m2", "minimax_m3_vl", "afmoe", "deepseek_v32", "glm_moe_dsa", "beam", "gemma4", "gemma4_text",
}  # fmt: skip
_RETURNS_WEIGHTS = frozenset({"bloom", "mpt", "gpt_neo"})
_WRITTEN_OUT = {"gpt_oss": "clamped", "apertus": "xielu in Python", "bloom": "gelu by hand"}


@lru_cache(maxsize=256)
def of(model_type: str) -> Traits:
    """The traits of a family; plain Llama-like where the family has none of them."""
    norm: NormStyle | None = "rms-wide" if model_type in _WIDE_WEIGHT else "layer-wide" if model_type in _WIDE_LAYER else None
    norm = "layer-float" if model_type in _FLOAT_LAYER else "rms-both" if model_type in _INNER_DROPOUT else norm
    rotary: RotaryStyle = "joined" if model_type in _PARTIAL else "wide" if model_type in _WIDE_LAYER or model_type in _FLOAT_LAYER else "plain"
    return Traits(
        rotary=rotary, norm=norm, post=model_type in _POST, wide_qk=model_type in _POST or model_type in ("olmoe", "minimax_m2"),
        around=model_type in _AROUND, activation=_WRITTEN_OUT.get(model_type, ""), value_norm=model_type in _VALUE_NORM, bare_qk=model_type in _BARE_QK,
        wide_router=model_type in _WIDE_ROUTER, wide_weights=model_type in _WIDE_WEIGHTS,
        all_experts=model_type in _BARE_QK, inner_dropout=model_type in _INNER_DROPOUT,
        parts_copied=model_type == "codegen",
        heads_first=model_type == "whisper", wide_scores=model_type == "gpt_neo", returns_weights=model_type in _RETURNS_WEIGHTS,
    )  # fmt: skip
