"""Gemma 4's text model: wider heads on full-attention layers, per-layer embeddings, layers that reuse keys and values, experts beside the MLP.

Source: ``modeling_gemma4.py`` and ``configuration_gemma4.py`` of transformers 5.24; shapes and names checked by building on the meta device.
Its towers are in :mod:`advisor.architecture.families.gemma4_towers`.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from advisor.architecture.config import defaults_of
from advisor.architecture.families.dense import Heads, Size, Traits, assembled, attention, heads_of, mlp, norms, size_of
from advisor.architecture.families.experts import Routed, expert_tensors
from advisor.architecture.families.gemma4_towers import audio_tensors, vision_tower
from advisor.architecture.families.llamalike import FOUR_NORMS, GELU
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import linear, norm, parameter
from advisor.architecture.shape import Architecture, Block, Experts, Tensor

_TRAITS = Traits(mlp_bias=False, norms=FOUR_NORMS, qk_norm="head", activation=GELU)
_FULL_EVERY = 6  # Gemma4TextConfig: every sixth layer, and the last, has full attention where layer_types is left out


class Extras(Struct, frozen=True):
    """What a layer has beside attention and MLP."""

    small: int  # width of the per-layer embedding; 0: none
    routed: Routed | None


def read(keys: Keys) -> Architecture:
    """The architecture of the text model; of the whole model's config, its ``text_config``."""
    inner = keys.section("text_config")
    if inner is None:
        if keys.model_type == "gemma4":  # a text model's keys under the whole model's name
            keys.defaults = keys.defaults.get("text_config") or {}
        return _text(keys)
    keys.seen.update(keys.config)
    inner.model_type = "gemma4_text"
    read = _with_towers(keys, _text(inner))
    return replace(read, model_type="gemma4", unread=(*read.unread, *inner.unread()))


def _with_towers(keys: Keys, text: Architecture) -> Architecture:
    """The text model with the towers that its config has; one that is not written, or null, is not built."""
    seeing = keys.section("vision_config", defaults=defaults_of("gemma4_vision"))
    hearing = keys.section("audio_config", defaults=defaults_of("gemma4_audio"))
    if seeing is not None:
        tower = vision_tower(seeing, text.hidden)
        text = replace(
            text, outer=(*text.outer, *tower.outer), vision=(tower.block,), vision_hidden=tower.hidden, vision_activation=GELU, vision_rotary=True,
            unread=(*text.unread, *seeing.unread()),
        )  # fmt: skip
    if hearing is not None:
        text = replace(text, outer=(*text.outer, *audio_tensors(hearing, text.hidden)), unread=(*text.unread, *hearing.unread()))
    return text


def _text(keys: Keys) -> Architecture:
    keys.seen.update(("global_head_dim", "num_global_key_value_heads", "per_layer_config", "num_experts", "top_k_experts"))
    size = size_of(keys)
    narrow = heads_of(keys, size.hidden)
    same = keys.flag("attention_k_eq_v")  # full-attention layers take the keys for values
    kv = (keys.optional("num_global_key_value_heads", most=65_536) if same else None) or narrow.kv
    if narrow.number % kv:
        raise keys.wrong(("num_global_key_value_heads",), kv, f"a divisor of the {narrow.number:,} attention heads")
    wide = Heads(narrow.number, kv, keys.size("global_head_dim", default=512, most=65_536))
    width, shared = keys.size("intermediate_size"), keys.size("num_kv_shared_layers", least=0, default=0, most=MOST_LAYERS)
    double = keys.flag("use_double_wide_mlp")
    extras = _extras(keys)
    window = keys.size("sliding_window", default=512)
    kinds = [(slides, index >= size.layers - shared) for index, slides in enumerate(_slides(keys, size.layers))]

    def build(kind: tuple[bool, bool], count: int) -> Block:
        slides, shares = kind
        heads = narrow if slides else wide
        own = attention(keys, _TRAITS, size.hidden, heads)
        missing = ("k_proj", "v_proj", "k_norm") if shares else ("v_proj",) if same and not slides else ()
        tensors = tuple(t for t in own if t.name.removesuffix(".bias") not in missing)
        return _block(keys, size, heads, tensors, width * (2 if double and shares else 1), extras, count, window if slides else None)

    made = assembled(keys, replace(_TRAITS), size, grouped(kinds, build))
    if not extras.small:
        return made
    rows = keys.size("vocab_size_per_layer_input", default=262_144)
    more = (
        *parameter("embed_tokens_per_layer", (rows, size.layers * extras.small), "embedding"),
        *linear("per_layer_model_projection", size.hidden, size.layers * extras.small, "other"),
        *norm("per_layer_projection_norm", extras.small),
    )
    return replace(made, outer=(*made.outer, *more))


def _slides(keys: Keys, layers: int) -> list[bool]:
    kinds = keys.items("layer_types") if keys.written("layer_types") else None
    if kinds is not None:
        return [index < len(kinds) and kinds[index] == "sliding_attention" for index in range(layers)]
    return [bool((index + 1) % _FULL_EVERY) and index + 1 < layers for index in range(layers)]


def _extras(keys: Keys) -> Extras:
    small = keys.optional("hidden_size_per_layer_input", least=0) or 0
    if not keys.flag("enable_moe_block"):
        return Extras(small, None)
    number, chosen = keys.size("num_experts", most=1 << 20), keys.size("top_k_experts", "num_experts_per_tok", most=1 << 20)
    if chosen > number:
        raise keys.wrong(("top_k_experts",), chosen, f"at most the {number:,} experts")
    return Extras(small, Routed(number, chosen, keys.size("moe_intermediate_size"), 0))


def _block(keys: Keys, size: Size, heads: Heads, own: tuple[Tensor, ...], width: int, extras: Extras, count: int, window: int | None) -> Block:
    hidden, small, routed = size.hidden, extras.small, extras.routed
    embedded = (*linear("per_layer_input_gate", hidden, small, "other"), *linear("per_layer_projection", small, hidden, "other")) if small else ()
    after = norm("post_per_layer_input_norm", hidden) if small else ()
    experts: tuple[Tensor, ...] = ()
    if routed:
        experts = (
            *parameter("scale", (hidden,), "router"),
            *parameter("per_expert_scale", (routed.number,), "router"),
            *linear("proj", hidden, routed.number, "router"),
            *expert_tensors(hidden, routed),
            *(t for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2") for t in norm(name, hidden)),
        )
    tensors = (*own, *mlp(keys, _TRAITS, hidden, width), *embedded, *after, *experts, *norms(keys, _TRAITS, hidden))
    return Block(
        kind="attention",
        count=count,
        tensors=tensors,
        heads=heads.number,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        v_head_dim=heads.dim,
        mlp_width=width,
        gated=True,
        experts=Experts(routed.number, routed.chosen, routed.width) if routed else None,
        norms=4 + bool(small) + (3 if routed else 0),
        qk_norm=True,
        window=window,
    )
