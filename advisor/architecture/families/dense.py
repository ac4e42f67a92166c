"""Llama-like decoders: RMS norms, rotary positions, split projections, a gated MLP; and the families that differ in a detail.

Source: ``modeling_<family>.py`` of transformers 5.24 (shapes checked by building on the meta device).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import embedding, gated_mlp, linear, norm, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor


@dataclass(frozen=True, slots=True)
class Traits:
    """Where a family differs from Llama."""

    qkv_bias: bool | None = None  # None: the config's attention_bias
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: Literal["", "head", "full"] = ""  # over a head, or over all heads together
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    layernorm: bool = False  # LayerNorm instead of RMSNorm
    norm_bias: bool = False
    norm_free: bool = False  # norms without parameters (OLMo 1)
    mlp: Literal["split", "fused", "plain"] = "split"
    mlp_names: tuple[str, ...] = ()
    fused_qkv: str = ""
    out_name: str = "o_proj"
    parallel: bool = False
    final: str = "norm"
    head_bias: bool = False
    activation: str = "silu"


FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILIES: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(qkv_bias=False, out_bias=False, mlp_bias=False),
    "qwen2": Traits(qkv_bias=True, out_bias=False, mlp_bias=False),
    "qwen3": Traits(qk_norm="head", mlp_bias=False),
    "gemma": Traits(mlp_bias=False, activation="gelu_pytorch_tanh"),
    "gemma2": Traits(mlp_bias=False, norms=FOUR_NORMS, activation="gelu_pytorch_tanh"),
    "gemma3_text": Traits(mlp_bias=False, norms=FOUR_NORMS, qk_norm="head", activation="gelu_pytorch_tanh"),
}


def read(keys: Keys) -> Architecture:
    """The architecture of a Llama-like decoder."""
    return decoder(keys, FAMILIES.get(keys.model_type, FAMILIES["llama"]))


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention heads of a layer."""

    number: int
    kv: int
    dim: int


def heads_of(keys: Keys, hidden: int) -> Heads:
    """Query heads, key and value heads, and the head's size."""
    number = keys.size("num_attention_heads", "n_head", "n_heads", most=65_536)
    kv = keys.optional("num_key_value_heads", most=65_536) or number
    dim = keys.optional("head_dim", most=65_536)
    if dim is None:
        if hidden < number:
            raise keys.wrong(("num_attention_heads", "n_head", "n_heads"), number, f"at most the hidden size {hidden:,}")
        dim = hidden // number
    if number % kv:
        raise keys.wrong(("num_key_value_heads",), kv, f"a divisor of the {number:,} attention heads")
    return Heads(number, kv, dim)


def attention(keys: Keys, traits: Traits, hidden: int, heads: Heads) -> tuple[Tensor, ...]:
    """Attention projections and the norms on queries and keys."""
    written = keys.flag("attention_bias", "qkv_bias", "use_qkv_bias") if traits.qkv_bias is None or traits.out_bias is None else False
    bias = written if traits.qkv_bias is None else traits.qkv_bias
    out_bias = written if traits.out_bias is None else traits.out_bias
    if traits.fused_qkv:
        tensors: tuple[Tensor, ...] = (
            *linear(traits.fused_qkv, hidden, (heads.number + 2 * heads.kv) * heads.dim, "attention", bias=bias),
            *linear(traits.out_name, heads.number * heads.dim, hidden, "attention", bias=out_bias),
        )
    else:
        tensors = split_attention(
            hidden, heads.number, heads.kv, heads.dim, names=("q_proj", "k_proj", "v_proj", traits.out_name), bias=bias, out_bias=out_bias
        )
    if traits.qk_norm == "head":
        tensors = (*tensors, *norm("q_norm", heads.dim), *norm("k_norm", heads.dim))
    elif traits.qk_norm == "full":
        tensors = (*tensors, *norm("q_norm", heads.number * heads.dim), *norm("k_norm", heads.kv * heads.dim))
    return tensors


def mlp(keys: Keys, traits: Traits, hidden: int, width: int) -> tuple[Tensor, ...]:
    """The dense MLP."""
    bias = keys.flag("mlp_bias") if traits.mlp_bias is None else traits.mlp_bias
    if traits.mlp == "plain":
        up, down = traits.mlp_names or ("up_proj", "down_proj")
        return plain_mlp(hidden, width, names=(up, down), bias=bias)
    default = ("gate_up_proj", "down_proj") if traits.mlp == "fused" else ("gate_proj", "up_proj", "down_proj")
    return gated_mlp(hidden, width, names=traits.mlp_names or default, bias=bias)


def norms(traits: Traits, hidden: int) -> tuple[Tensor, ...]:
    """The norms of a layer over the hidden size."""
    return () if traits.norm_free else tuple(t for name in traits.norms for t in norm(name, hidden, bias=traits.norm_bias))


def block(keys: Keys, traits: Traits, hidden: int, heads: Heads, width: int, *, count: int, window: int | None = None) -> Block:
    """One kind of dense layer."""
    return Block(
        kind="attention",
        count=count,
        tensors=(*attention(keys, traits, hidden, heads), *mlp(keys, traits, hidden, width), *norms(traits, hidden)),
        heads=heads.number,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        v_head_dim=heads.dim,
        mlp_width=width,
        gated=traits.mlp != "plain",
        norms=len(traits.norms),
        qk_norm=bool(traits.qk_norm),
        window=window,
        parallel=traits.parallel,
    )


def windows(keys: Keys, layers: int) -> list[tuple[int, int | None]]:
    """Layers and their sliding window, in the order in which the kinds first occur."""
    window = keys.optional("sliding_window") if keys.written("sliding_window") or keys.model_type in ("gemma2", "gemma3_text") else None
    if window is None or (keys.model_type in ("qwen2", "qwen3") and not keys.flag("use_sliding_window")):
        return [(layers, None)]
    kinds = keys.items("layer_types")
    if kinds is None:
        pattern = keys.optional("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS)
        pattern = pattern or {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}.get(keys.model_type)
        if pattern is None:
            return [(layers, window)]
        full = layers // pattern
    else:
        full = sum(kind == "full_attention" for kind in kinds[:layers])
    return [(n, w) for n, w in ((layers - full, window), (full, None)) if n]


def outer(keys: Keys, traits: Traits, hidden: int, vocab: int, tied: bool) -> tuple[Tensor, ...]:
    """Embedding, final norm and, where it is not tied, the head."""
    return (
        *embedding("embed_tokens", vocab, hidden),
        *(() if traits.norm_free else norm(traits.final, hidden, bias=traits.norm_bias)),
        *(() if tied else linear("lm_head", hidden, vocab, "head", bias=traits.head_bias)),
    )


def decoder(keys: Keys, traits: Traits) -> Architecture:
    """A decoder whose layers differ at most in their window."""
    hidden = keys.required("hidden_size", "n_embd", "d_model")
    layers = keys.required("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST_LAYERS)
    vocab = keys.size("vocab_size", "padded_vocab_size")
    heads = heads_of(keys, hidden)
    width = keys.size("intermediate_size", "ffn_hidden_size")
    tied = keys.flag("tie_word_embeddings")
    return Architecture(
        model_type=keys.model_type or "llama",
        hidden=hidden,
        vocab=vocab,
        tied=tied,
        max_positions=keys.optional("max_position_embeddings"),
        norm="layernorm" if traits.layernorm else "rmsnorm",
        activation=keys.word("hidden_act", "hidden_activation", "activation", default=traits.activation),
        blocks=tuple(block(keys, traits, hidden, heads, width, count=n, window=w) for n, w in windows(keys, layers)),
        outer=outer(keys, traits, hidden, vocab, tied),
        attention_dropout=keys.fraction("attention_dropout"),
        softcap_attention=keys.number("attn_logit_softcapping") or None,
        softcap_logits=keys.number("final_logit_softcapping") or None,
    )
