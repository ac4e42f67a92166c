"""Models of mixers, alone or between attention layers: Mamba, Falcon-Mamba, Mamba 2, Jamba, Bamba, Granite 4, Falcon-H1, LFM2, Qwen3-Next.

Source: ``modeling_<family>.py`` of transformers 5.24; shapes and names checked by building on the meta device. Nemotron-H: ``nemotron_h.py``.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from advisor.architecture.families.dense import Heads, Size, Traits, assembled, attention, heads_of, mlp, norms, size_of
from advisor.architecture.families.experts import Routed
from advisor.architecture.families.mamba import delta_of, selective_of, short_convolution, structured_of
from advisor.architecture.families.moe import Sparse, routed_of, sparse_ffn, sparse_layers
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import linear, norm
from advisor.architecture.shape import Architecture, Block, Experts, Mixer, Role, Tensor

NO_HEADS = Heads(0, 0, 0)
_GRANITE = ("granitemoehybrid", "granitemoeshared")
PURE = ("mamba", "falcon_mamba", "mamba2")

_FEED = Traits(out_bias=False, qkv_bias=False, mlp_bias=False, norms=("input_layernorm", "pre_ff_layernorm"), final="final_layernorm")
_LFM2 = Traits(
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    attention_names=("q_proj", "k_proj", "v_proj", "out_proj"),
    mlp_names=("w1", "w3", "w2"),
    qk_norm="head",
    qk_names=("q_layernorm", "k_layernorm"),
    norms=("operator_norm", "ffn_norm"),
    final="embedding_norm",
)
_QWEN = Traits(mlp_bias=False, qk_norm="head")
_SPARSE = {
    "jamba": Sparse(_FEED, width=("intermediate_size",), router="router"),
    "granitemoehybrid": Sparse(Traits(mlp_bias=False), width=("intermediate_size",), router="router"),
    "granitemoeshared": Sparse(Traits(mlp_bias=False), width=("intermediate_size",), router="router"),
    "lfm2_moe": Sparse(_LFM2),
    "qwen3_next": Sparse(_QWEN, shared="width", shared_key="shared_expert_intermediate_size", shared_gate=True),
    "qwen3_5_moe_text": Sparse(_QWEN, shared="width", shared_key="shared_expert_intermediate_size", shared_gate=True),
}
_TRAITS = {
    **{name: sparse.traits for name, sparse in _SPARSE.items()},
    "bamba": _FEED,
    "falcon_h1": replace(_FEED, qkv_bias="attention_bias"),
    "lfm2": _LFM2,
    "qwen3_5_text": _QWEN,
}


class Part(Struct, frozen=True):
    """The first half of a layer: attention heads or a mixer (Falcon-H1: both) and their tensors."""

    tensors: tuple[Tensor, ...]
    heads: Heads
    mixer: Mixer | None
    qk_norm: bool = False


class Feed(Struct, frozen=True):
    """The second half of a layer."""

    tensors: tuple[Tensor, ...]
    width: int
    routed: Routed | None


def read(keys: Keys) -> Architecture:
    """The architecture: layers alike are one block."""
    size = size_of(keys)
    if keys.model_type in PURE:
        return _pure(keys, size)
    traits = _TRAITS[keys.model_type]
    attends, sparse = _attention_layers(keys, size.layers), _sparse(keys, size.layers)

    def build(kind: tuple[bool, bool], count: int) -> Block:
        return _block(keys, traits, size, _attention(keys, traits, size) if kind[0] else _mixer(keys, size), _feed(keys, traits, size, routed=kind[1]), count)

    return replace(
        assembled(keys, traits, size, grouped(list(zip(attends, sparse, strict=True)), build)), rotary=keys.model_type not in ("jamba", "granitemoehybrid")
    )


def _pure(keys: Keys, size: Size) -> Architecture:
    mixer, tensors = structured_of(keys, size.hidden) if keys.model_type == "mamba2" else selective_of(keys, size.hidden)
    block = Block("mixer", size.layers, (*tensors, *norm("norm", size.hidden)), 0, 0, 0, 0, 0, False, mixer=mixer, norms=1)
    made = assembled(keys, Traits(embedding="embeddings", final="norm_f"), size, (block,))
    return replace(made, rotary=False, max_positions=None, residual_fp32=keys.flag("residual_in_fp32"))


def _attention_layers(keys: Keys, layers: int) -> list[bool]:
    keys.seen.update(("layer_types", "layers_block_type"))
    kinds = keys.items("layer_types", "layers_block_type") if keys.written("layer_types", "layers_block_type") else None
    if kinds is not None:
        return [index < len(kinds) and kinds[index] in ("attention", "full_attention") for index in range(layers)]
    if keys.model_type == "jamba":
        period, offset = keys.size("attn_layer_period", default=8, most=MOST_LAYERS), keys.size("attn_layer_offset", default=4, least=0, most=MOST_LAYERS)
        return [index % period == offset for index in range(layers)]
    if keys.model_type in ("bamba", "lfm2", "lfm2_moe"):
        named = keys.items("attn_layer_indices", "full_attn_idxs")
        return [index in (named or ()) for index in range(layers)]
    if keys.model_type in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = keys.size("full_attention_interval", default=4, most=MOST_LAYERS)
        return [(index + 1) % every == 0 for index in range(layers)]
    return [keys.model_type in ("falcon_h1", "granitemoeshared")] * layers


def _sparse(keys: Keys, layers: int) -> list[bool]:
    family = _SPARSE.get(keys.model_type)
    if family is None or (keys.optional(*family.number, least=0) or 0) < (2 if keys.model_type == "jamba" else 1):
        return [False] * layers
    if keys.model_type == "jamba":
        period, offset = keys.size("expert_layer_period", default=2, most=MOST_LAYERS), keys.size("expert_layer_offset", default=1, least=0, most=MOST_LAYERS)
        return [index % period == offset for index in range(layers)]
    if keys.model_type == "lfm2_moe":
        first = keys.size("num_dense_layers", default=2, least=0, most=MOST_LAYERS)
        return [index >= first for index in range(layers)]
    return [True] * layers if keys.model_type in _GRANITE else sparse_layers(keys, layers)


def _attention(keys: Keys, traits: Traits, size: Size) -> Part:
    heads = heads_of(keys, size.hidden)
    tensors = attention(keys, traits, size.hidden, heads)
    if keys.model_type in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):  # q_proj gives the query and a gate of its size
        tensors = tuple(replace(t, shape=(2 * t.shape[0], *t.shape[1:])) if t.name.startswith("q_proj") else t for t in tensors)
    if keys.model_type == "falcon_h1":
        mixer, more = structured_of(keys, size.hidden)
        return Part((*tensors, *more), heads, mixer)
    return Part(tensors, heads, None, bool(traits.qk_norm))


def _mixer(keys: Keys, size: Size) -> Part:
    if keys.model_type == "jamba":
        mixer, tensors = selective_of(keys, size.hidden)
    elif keys.model_type in ("lfm2", "lfm2_moe"):
        mixer, tensors = short_convolution(size.hidden, keys.size("conv_L_cache", default=3, most=65_536), bias=keys.flag("conv_bias"))
    elif keys.model_type.startswith("qwen"):
        mixer, tensors = delta_of(keys, size.hidden)
    else:
        mixer, tensors = structured_of(keys, size.hidden)
    return Part(tensors, NO_HEADS, mixer)


def _feed(keys: Keys, traits: Traits, size: Size, *, routed: bool) -> Feed:
    shared: tuple[Tensor, ...] = ()
    shared_width = 0
    keys.seen.add("intermediate_size")
    if keys.model_type in _GRANITE:
        shared_width = keys.size("shared_intermediate_size", least=0, default=1024)
        role: Role = "shared-expert" if routed else "mlp"
        if shared_width:
            shared = (*linear("input_linear", size.hidden, 2 * shared_width, role), *linear("output_linear", shared_width, size.hidden, role))
    if routed:
        family = _SPARSE[keys.model_type]
        experts = routed_of(keys, family)
        if experts is not None:
            tensors = (*sparse_ffn(keys, family, size.hidden, experts), *shared)
            return Feed(tensors, 0, replace(experts, shared_width=experts.shared_width or shared_width))
    if shared:
        return Feed(shared, shared_width, None)
    width = keys.size("intermediate_size", "block_ff_dim")
    if keys.model_type == "lfm2":
        width = _adjusted(keys, width)
    return Feed(mlp(keys, traits, size.hidden, width), width, None)


def _adjusted(keys: Keys, width: int) -> int:
    """LFM2's MLP width: two thirds, times a factor, rounded up to a multiple (``Lfm2MLP``)."""
    multiple, factor = keys.size("block_multiple_of", default=256), keys.number("block_ffn_dim_multiplier", default=1.0, most=1e6)
    if not keys.flag("block_auto_adjust_ff_dim", default=True):
        return width
    adjusted = int(factor * int(2 * width / 3))
    return multiple * math.ceil(adjusted / multiple)


def _block(keys: Keys, traits: Traits, size: Size, first: Part, feed: Feed, count: int) -> Block:
    experts = feed.routed
    return Block(
        kind="attention" if first.heads.number else "mixer",
        count=count,
        tensors=(*first.tensors, *feed.tensors, *norms(keys, traits, size.hidden)),
        heads=first.heads.number,
        kv_heads=first.heads.kv,
        head_dim=first.heads.dim,
        v_head_dim=first.heads.dim,
        mlp_width=feed.width,
        gated=True,
        experts=Experts(experts.number, experts.chosen, experts.width, experts.shared_width) if experts else None,
        mixer=first.mixer,
        norms=len(traits.norms),
        qk_norm=first.qk_norm,
    )
