"""Mixtures of experts over Llama-like attention: Mixtral, Qwen-MoE, OLMoE, Granite-MoE, PhiMoE, GPT-OSS, GLM-4.5, Llama 4, DBRX, ...

Source: ``modeling_<family>.py`` of transformers 5.24; shapes and names checked by building on the meta device.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from advisor.architecture.families.dense import Heads, Size, Traits, assembled, attention, dense_block, has_qk_norm, heads_of, norms, size_of
from advisor.architecture.families.experts import Routed, expert_tensors
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped, windows
from advisor.architecture.pieces import linear, parameter
from advisor.architecture.shape import Architecture, Block, Experts, Tensor


class Sparse(Struct, frozen=True):
    """Which keys hold a family's experts, and what surrounds them."""

    traits: Traits
    number: tuple[str, ...] = ("num_experts", "num_local_experts", "n_routed_experts")
    chosen: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared: Literal["", "width", "number", "same"] = ""  # a width key, a number of experts, or one of the routed width
    shared_key: str = ""
    shared_gate: bool = False
    dense_width: str = "intermediate_size"
    router: str = "gate"
    router_linear: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    transposed: bool = False  # experts stored [in, out]
    sinks: bool = False


_QWEN3 = Traits(mlp_bias=False, qk_norm="head")
_PLAIN = Traits(mlp_bias=False)
_PHI = Traits(mlp_bias=False, layernorm=True, norm_bias=True, head_bias="lm_head_bias")
FAMILIES: dict[str, Sparse] = {
    "mixtral": Sparse(Traits(qkv_bias=False, out_bias=False, mlp_bias=False), width=("intermediate_size",)),
    "qwen2_moe": Sparse(Traits(qkv_bias=True, out_bias=False, mlp_bias=False), shared="width", shared_key="shared_expert_intermediate_size", shared_gate=True),
    "qwen3_moe": Sparse(_QWEN3),
    "qwen3_vl_moe_text": Sparse(_QWEN3),
    "olmoe": Sparse(Traits(mlp_bias=False, qk_norm="full"), width=("intermediate_size",)),
    "granitemoe": Sparse(_PLAIN, width=("intermediate_size",), router="router"),
    "phimoe": Sparse(_PHI, width=("intermediate_size",), router="router", router_linear=True),
    "gpt_oss": Sparse(_PLAIN, width=("intermediate_size",), router="router", router_bias=True, expert_bias=True, transposed=True, sinks=True),
    "glm4_moe": Sparse(Traits(out_bias=False, mlp_bias=False, qk_norm="head", qk_norm_if="use_qk_norm"), shared="number", shared_key="n_shared_experts"),
    "llama4_text": Sparse(
        Traits(mlp_bias=False),
        width=("intermediate_size",),
        shared="same",
        dense_width="intermediate_size_mlp",
        router="router",
        router_linear=True,
        transposed=True,
    ),
    "minimax_m2": Sparse(Traits(qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm="full"), width=("intermediate_size",)),
    "ernie4_5_moe": Sparse(
        Traits(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
        number=("moe_num_experts",),
        chosen=("moe_k",),
        shared="number",
        shared_key="moe_num_shared_experts",
    ),
}


# families whose experts' keys are named as usual (:func:`unknown_family`), and what surrounds the experts
USUAL: dict[str, Traits] = {
    **dict.fromkeys(("dots1", "exaone_moe", "hy_v3", "sarvam_moe", "mellum"), _QWEN3),
    "flex_olmo": Traits(mlp_bias=False, qk_norm="full"),
}


def read(keys: Keys) -> Architecture:
    """The architecture; layers without experts are blocks of their own."""
    if keys.model_type == "dbrx":
        return _dbrx(keys)
    family = FAMILIES.get(keys.model_type) or unknown_family(keys, USUAL.get(keys.model_type, _PLAIN))
    size = size_of(keys)
    heads = heads_of(keys, size.hidden)
    routed = routed_of(keys, family)
    keys.seen.update((family.dense_width, "intermediate_size", "n_group", "topk_group"))
    kinds = list(zip(sparse_layers(keys, size.layers), windows(keys, size.layers), strict=True))

    def build(kind: tuple[bool, int | None], count: int) -> Block:
        sparse, window = kind
        if sparse and routed is not None:
            return sparse_block(keys, family, size.hidden, heads, routed, count=count, window=window)
        return dense_block(keys, family.traits, size.hidden, heads, keys.size(family.dense_width, "intermediate_size"), count=count, window=window)

    return assembled(keys, family.traits, size, grouped(kinds, build))


def unknown_family(keys: Keys, traits: Traits = _PLAIN) -> Sparse:
    """A family without an entry, by its keys: the experts' width and the shared experts as they are usually named."""
    width = ("moe_intermediate_size",) if keys.written("moe_intermediate_size") else ("intermediate_size",)
    number, chosen = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_topk", "top_k", "moe_k")
    if keys.written("shared_expert_intermediate_size"):
        return Sparse(traits, number, chosen, width, shared="width", shared_key="shared_expert_intermediate_size")
    if keys.written("n_shared_experts", "num_shared_experts"):
        name = "n_shared_experts" if keys.written("n_shared_experts") else "num_shared_experts"
        return Sparse(traits, number, chosen, width, shared="number", shared_key=name)
    return Sparse(traits, number, chosen, width)


def routed_of(keys: Keys, family: Sparse) -> Routed | None:
    """The experts of a sparse layer; ``None`` where the config has none (a dense sibling written with an MoE's keys)."""
    number = keys.size(*family.number, least=0, most=1 << 20)
    if number == 0:
        return None
    chosen = keys.size(*family.chosen, most=1 << 20)
    if chosen > number:
        raise keys.wrong(family.chosen, chosen, f"at most the {number:,} experts")
    width = keys.size(*family.width)
    shared = 0
    if family.shared == "width":
        shared = keys.size(family.shared_key, least=0, default=0)
    elif family.shared == "number":
        shared = width * (keys.optional(family.shared_key, least=0, most=1 << 20) or 0)
    elif family.shared == "same":
        shared = width
    return Routed(number, chosen, width, shared)


def sparse_layers(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer has experts."""
    keys.seen.update(("decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace", "moe_layer_freq", "interleave_moe_layer_step", "moe_layers"))
    kinds = keys.items("mlp_layer_types") if keys.written("mlp_layer_types") else None
    if kinds is not None:
        return [index < len(kinds) and kinds[index] == "sparse" for index in range(layers)]
    if keys.model_type == "llama4_text":
        named = keys.items("moe_layers") if keys.written("moe_layers") else None
        step = keys.size("interleave_moe_layer_step", default=1, most=MOST_LAYERS)
        return [index in named if named is not None else (index + 1) % step == 0 for index in range(layers)]
    if keys.model_type == "ernie4_5_moe":
        first, step = keys.size("moe_layer_start_index", least=0, default=0, most=MOST_LAYERS), keys.size("moe_layer_interval", default=1, most=MOST_LAYERS)
        return [index >= first and (index + 1) % step == 0 for index in range(layers)]
    first = keys.size("first_k_dense_replace", least=0, default=1 if keys.model_type == "glm4_moe_lite" else 0, most=MOST_LAYERS)
    frequency = keys.raw("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):  # one entry a layer (hub code of later families)
        return [index < len(frequency) and bool(frequency[index]) for index in range(layers)]
    step = keys.size("decoder_sparse_step", default=1, most=MOST_LAYERS)
    only = (keys.items("mlp_only_layers") or []) if keys.written("mlp_only_layers") else []
    every = keys.size("moe_layer_freq", default=1, most=MOST_LAYERS)
    return [index >= first and index not in only and (index + 1) % step == 0 and index % every == 0 for index in range(layers)]


def sparse_ffn(keys: Keys, family: Sparse, hidden: int, routed: Routed) -> tuple[Tensor, ...]:
    """Router, experts and the shared expert."""
    correction = parameter("e_score_correction_bias", (1, routed.number), "router") if keys.model_type == "ernie4_5_moe" else ()
    router = linear(family.router, hidden, routed.number, "router", bias=family.router_bias)
    return (
        *(router if family.router_linear else tuple(replace(t, linear=False) for t in router)),
        *correction,
        *expert_tensors(hidden, routed, bias=family.expert_bias, transposed=family.transposed, gated=keys.gated is not False),
        *(linear("shared_expert_gate", hidden, 1, "router") if family.shared_gate and routed.shared_width else ()),
    )


def sparse_block(keys: Keys, family: Sparse, hidden: int, heads: Heads, routed: Routed, *, count: int, window: int | None) -> Block:
    """One kind of layer with experts."""
    traits = family.traits
    sinks = parameter("sinks", (heads.number,), "attention") if family.sinks else ()
    return Block(
        kind="attention",
        count=count,
        tensors=(*attention(keys, traits, hidden, heads), *sinks, *sparse_ffn(keys, family, hidden, routed), *norms(keys, traits, hidden)),
        heads=heads.number,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        v_head_dim=heads.dim,
        mlp_width=0,
        gated=keys.gated is not False,
        experts=Experts(routed.number, routed.chosen, routed.width, routed.shared_width),
        norms=len(traits.norms),
        qk_norm=has_qk_norm(keys, traits) if keys.model_type != "llama4_text" else window is not None and keys.flag("use_qk_norm", default=True),
        window=window,
    )


def _dbrx(keys: Keys) -> Architecture:
    traits = Traits(
        qkv_bias=False, out_bias=False, attention_names=("Wqkv", "out_proj"), norms=("norm_1", "norm_2"), layernorm=True, embedding="wte", final="norm_f"
    )
    size = size_of(keys)
    inner, experts = keys.section("attn_config"), keys.section("ffn_config")
    number = keys.size("n_heads", "num_attention_heads", most=65_536)
    kv = (inner.optional("kv_n_heads", most=65_536) if inner else None) or number
    if number % kv:
        raise keys.wrong(("n_heads",), number, f"a multiple of the {kv:,} key and value heads")
    if experts is None:
        raise keys.wrong(("ffn_config",), None, "a mapping with ffn_hidden_size, moe_num_experts and moe_top_k")
    heads = Heads(number, kv, size.hidden // number)
    routed = Routed(experts.size("moe_num_experts", most=1 << 20), experts.size("moe_top_k", most=1 << 20), experts.size("ffn_hidden_size"), 0)
    tensors = (
        *attention(keys, traits, size.hidden, heads),
        *linear("layer", size.hidden, routed.number, "router"),
        *(Tensor(name, (routed.width, size.hidden), "expert", False, routed.number) for name in ("w1", "v1", "w2")),
        *norms(keys, traits, size.hidden),
    )
    block = Block(
        "attention", size.layers, tensors, number, kv, heads.dim, heads.dim, 0, True, Experts(routed.number, min(routed.chosen, routed.number), routed.width)
    )
    return assembled(keys, traits, Size(size.hidden, size.layers, size.vocab, size.tied), (block,))
