"""Llama-like decoders: the reader, and what it needs of a family (:class:`Traits`).

Source: ``modeling_<family>.py`` of transformers 5.24, or of the hub repository where the code is there (shapes and names checked by
building on the meta device where a class exists).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped, windows
from advisor.architecture.pieces import embedding, fused_attention, gated_mlp, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor


class Traits(Struct, frozen=True):
    """Where a family differs from Llama. A bias given as a text is the config key that decides it."""

    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    qk_norm: Literal["", "head", "full", "per-head"] = ""  # over one head's size, over all heads together, or with a scale a head
    qk_norm_if: str = ""  # the config key that switches it
    qk_names: tuple[str, str] = ("q_norm", "k_norm")
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    layernorm: bool = False
    norm_bias: bool = False
    norm_free: bool = False  # norms without parameters (OLMo 1)
    mlp: Literal["split", "fused", "plain"] = "split"
    mlp_names: tuple[str, ...] = ()
    attention_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")  # two names: fused
    parallel: bool = False
    parallel_if: str = ""
    embedding: str = "embed_tokens"
    final: str = "norm"
    head: str = "lm_head"
    head_bias: bool | str = False
    activation: str = "silu"
    extra: tuple[tuple[str, int], ...] = ()  # bare parameters of a layer: name and size
    half_width: bool = False  # intermediate_size counts gate and up together (Qwen 1)
    rotary: bool = True


class Heads(Struct, frozen=True):
    """Attention heads of a layer."""

    number: int
    kv: int
    dim: int


class Size(Struct, frozen=True):
    """What every decoder has."""

    hidden: int
    layers: int
    vocab: int
    tied: bool


def size_of(keys: Keys) -> Size:
    """Hidden size, layers, vocabulary, and whether the head is tied."""
    return Size(
        hidden=keys.required("hidden_size", "n_embd", "d_model"),
        layers=keys.required("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST_LAYERS),
        vocab=keys.size("vocab_size", "padded_vocab_size"),
        tied=keys.flag("tie_word_embeddings"),
    )


def heads_of(keys: Keys, hidden: int) -> Heads:
    """Query heads, key and value heads, and the head's size."""
    number = keys.size("num_attention_heads", "n_head", "n_heads", most=65_536)
    kv = keys.optional("num_key_value_heads", "num_kv_heads", most=65_536) or number
    if keys.model_type == "chatglm":
        kv = keys.size("multi_query_group_num", most=65_536) if keys.flag("multi_query_attention") else number
    dim = keys.optional("head_dim", "attention_head_dim", "kv_channels", most=65_536)
    if dim is None:
        if hidden < number:
            raise keys.wrong(("num_attention_heads", "n_head", "n_heads"), number, f"at most the hidden size {hidden:,}")
        dim = hidden // number
    if number % kv and not keys.written("num_key_value_heads", "num_kv_heads", "multi_query_group_num"):
        keys.assumed.append(
            f"{keys.where}num_key_value_heads is not in the config, and the class's default {kv} does not divide {number} heads; {number} was taken"
        )
        kv = number
    if number % kv:
        raise keys.wrong(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), kv, f"a divisor of the {number:,} attention heads")
    return Heads(number, kv, dim)


def _decided(keys: Keys, value: bool | str) -> bool:
    return keys.flag(value) if isinstance(value, str) else value


def attention(keys: Keys, traits: Traits, hidden: int, heads: Heads) -> tuple[Tensor, ...]:
    """Attention projections and the norms on queries and keys."""
    bias, out_bias = _decided(keys, traits.qkv_bias), _decided(keys, traits.out_bias)
    names = traits.attention_names
    if len(names) == 2:
        tensors = fused_attention(hidden, heads.number, heads.kv, heads.dim, names=(names[0], names[1]), bias=bias, out_bias=out_bias)
    else:
        tensors = split_attention(hidden, heads.number, heads.kv, heads.dim, names=(names[0], names[1], names[2], names[3]), bias=bias, out_bias=out_bias)
    return (*tensors, *_qk_norms(keys, traits, heads))


def has_qk_norm(keys: Keys, traits: Traits) -> bool:
    """Whether queries and keys are normed."""
    return bool(traits.qk_norm) and (not traits.qk_norm_if or keys.flag(traits.qk_norm_if))


def _qk_norms(keys: Keys, traits: Traits, heads: Heads) -> tuple[Tensor, ...]:
    if not has_qk_norm(keys, traits):
        return ()
    query, key = traits.qk_names
    if traits.qk_norm == "full":
        return (*norm(query, heads.number * heads.dim), *norm(key, heads.kv * heads.dim))
    if traits.qk_norm == "per-head":
        return (*parameter(query, (heads.number, heads.dim), "norm"), *parameter(key, (heads.kv, heads.dim), "norm"))
    return (*norm(query, heads.dim), *norm(key, heads.dim))


def is_gated(keys: Keys, traits: Traits) -> bool:
    """Whether the MLP has a gate: the family's habit, unless the job says otherwise."""
    return traits.mlp != "plain" if keys.gated is None else keys.gated


def mlp(keys: Keys, traits: Traits, hidden: int, width: int) -> tuple[Tensor, ...]:
    """The dense MLP."""
    bias = _decided(keys, traits.mlp_bias)
    if not is_gated(keys, traits):
        names = traits.mlp_names if traits.mlp == "plain" and traits.mlp_names else ("up_proj", "down_proj")
        return plain_mlp(hidden, width, names=(names[0], names[1]), bias=bias)
    default = ("gate_up_proj", "down_proj") if traits.mlp == "fused" else ("gate_proj", "up_proj", "down_proj")
    return gated_mlp(hidden, width, names=traits.mlp_names if traits.mlp != "plain" and traits.mlp_names else default, bias=bias)


def norm_names(keys: Keys, traits: Traits) -> tuple[str, ...]:
    """The norms of a layer over the hidden size."""
    if traits.parallel_if and keys.flag(traits.parallel_if):
        return traits.norms[:1]
    return traits.norms


def norms(keys: Keys, traits: Traits, hidden: int) -> tuple[Tensor, ...]:
    """Their tensors."""
    return () if traits.norm_free else tuple(t for name in norm_names(keys, traits) for t in norm(name, hidden, bias=traits.norm_bias))


def dense_block(keys: Keys, traits: Traits, hidden: int, heads: Heads, width: int, *, count: int, window: int | None = None) -> Block:
    """One kind of dense layer."""
    extra = tuple(t for name, size in traits.extra for t in parameter(name, (size,), "other"))
    return Block(
        kind="attention",
        count=count,
        tensors=(*attention(keys, traits, hidden, heads), *mlp(keys, traits, hidden, width), *extra, *norms(keys, traits, hidden)),
        heads=heads.number,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        v_head_dim=heads.dim,
        mlp_width=width,
        gated=is_gated(keys, traits),
        norms=len(norm_names(keys, traits)),
        qk_norm=has_qk_norm(keys, traits),
        window=window,
        parallel=traits.parallel or bool(traits.parallel_if and keys.flag(traits.parallel_if)),
    )


def outer(keys: Keys, traits: Traits, size: Size) -> tuple[Tensor, ...]:
    """Embedding, final norm and, where it is not tied, the head. A tied head keeps its bias."""
    bias = _decided(keys, traits.head_bias)
    head = linear(traits.head, size.hidden, size.vocab, "head", bias=bias)
    return (
        *embedding(traits.embedding, size.vocab, size.hidden),
        *(() if traits.norm_free else norm(traits.final, size.hidden, bias=traits.norm_bias)),
        *(head[1:] if size.tied else head),
    )


def assembled(keys: Keys, traits: Traits, size: Size, blocks: tuple[Block, ...]) -> Architecture:
    """The architecture of these blocks with the family's embedding, norm and head."""
    return Architecture(
        model_type=keys.model_type or "llama",
        hidden=size.hidden,
        vocab=size.vocab,
        tied=size.tied,
        max_positions=keys.optional("max_position_embeddings", "seq_length", "max_seq_len"),
        norm="layernorm" if traits.layernorm else "rmsnorm",
        activation=keys.word("hidden_act", "hidden_activation", "activation", "mlp_hidden_act", default=traits.activation),
        blocks=blocks,
        outer=outer(keys, traits, size),
        attention_dropout=keys.fraction("attention_dropout"),
        hidden_dropout=keys.fraction("residual_dropout", "resid_pdrop", "hidden_dropout"),
        softcap_attention=keys.number("attn_logit_softcapping") or None,
        softcap_logits=keys.number("final_logit_softcapping") or None,
        rotary=traits.rotary,
    )


def decoder(keys: Keys, traits: Traits) -> Architecture:
    """A decoder whose layers differ at most in their window."""
    size = size_of(keys)
    heads = heads_of(keys, size.hidden)
    width = keys.size("intermediate_size", "ffn_hidden_size")
    if traits.half_width:
        width //= 2
    blocks = grouped(windows(keys, size.layers), lambda window, count: dense_block(keys, traits, size.hidden, heads, width, count=count, window=window))
    return assembled(keys, traits, size, blocks)
