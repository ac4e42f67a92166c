"""Gemma 3n's text model: per-layer embeddings, AltUp, LAuReL, and layers that reuse earlier keys and values.

Source: ``modeling_gemma3n.py`` of transformers 5.24; shapes and names checked by building on the meta device.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture.families.dense import Heads, Size, Traits, assembled, attention, heads_of, mlp, norms, size_of
from advisor.architecture.families.llamalike import FOUR_NORMS, GELU
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped, windows
from advisor.architecture.pieces import linear, norm, parameter
from advisor.architecture.shape import Architecture, Block, Tensor

_SPARSE = 10  # Gemma3nTextConfig
_TRAITS = Traits(mlp_bias=False, norms=FOUR_NORMS, qk_norm="head", activation=GELU)


def read(keys: Keys) -> Architecture:
    """The architecture; the last ``num_kv_shared_layers`` have no key and value projections of their own."""
    size, heads = size_of(keys), heads_of(keys, keys.required("hidden_size"))
    widths, small = _widths(keys, size.layers), keys.size("hidden_size_per_layer_input", default=256)
    inputs, rank = keys.size("altup_num_inputs", default=4, most=64), keys.size("laurel_rank", default=64)
    shared = keys.size("num_kv_shared_layers", least=0, default=15, most=MOST_LAYERS)
    cut = _cut(keys, size.layers)
    kinds = [(widths[index], index >= size.layers - shared, window, cut[index]) for index, window in enumerate(windows(keys, size.layers))]
    blocks = grouped(kinds, lambda kind, count: _block(keys, size, heads, kind, count, small, inputs, rank))
    made = assembled(keys, _TRAITS, size, blocks)
    rows = keys.size("vocab_size_per_layer_input", default=262_144)
    more = (
        *parameter("embed_tokens_per_layer", (rows, size.layers * small), "embedding"),
        *linear("per_layer_model_projection", size.hidden, size.layers * small, "other"),
        *norm("per_layer_projection_norm", small),
        *(t for name in ("altup_projections", "altup_unembed_projections") for t in linear(name, size.hidden, size.hidden, "other", times=inputs - 1)),
    )
    return replace(made, outer=(*made.outer, *more))


def _cut(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer's gate passes only its largest part: as ``activation_sparsity_pattern`` says, else the first ten of more than ten layers."""
    value = keys.raw("activation_sparsity_pattern")
    if isinstance(value, (list, tuple)):
        return [index < len(value) and isinstance(value[index], (int, float)) and value[index] > 0 for index in range(layers)]
    return [layers > _SPARSE and index < _SPARSE for index in range(layers)]


def _widths(keys: Keys, layers: int) -> list[int]:
    value = keys.raw("intermediate_size")
    if not isinstance(value, (list, tuple)):
        return [keys.size("intermediate_size")] * layers
    if len(value) != layers or any(isinstance(w, bool) or not isinstance(w, int) or not 1 <= w <= 1 << 30 for w in value):
        raise keys.wrong(("intermediate_size",), value, f"a width, or a list of {layers:,} widths")
    return list(value)


def _block(keys: Keys, size: Size, heads: Heads, kind: tuple[int, bool, int | None, bool], count: int, small: int, inputs: int, rank: int) -> Block:
    width, shares, window, cut = kind
    hidden = size.hidden
    own = attention(keys, _TRAITS, hidden, heads)
    if shares:
        own = tuple(t for t in own if not t.name.startswith(("k_proj", "v_proj", "k_norm")))
    tensors: tuple[Tensor, ...] = (
        *own,
        *mlp(keys, _TRAITS, hidden, width),
        *parameter("correct_output_scale", (hidden,), "other"),
        *linear("correction_coefs", inputs, inputs, "other"),
        *linear("prediction_coefs", inputs, inputs * inputs, "other"),
        *linear("modality_router", hidden, inputs, "other"),
        *norm("router_norm", hidden),
        *linear("linear_left", hidden, rank, "other"),
        *linear("linear_right", rank, hidden, "other"),
        *norm("post_laurel_norm", hidden),
        *linear("per_layer_input_gate", hidden, small, "other"),
        *linear("per_layer_projection", small, hidden, "other"),
        *norm("post_per_layer_input_norm", hidden),
        *norms(keys, _TRAITS, hidden),
    )
    return Block("attention", count, tensors, heads.number, heads.kv, heads.dim, heads.dim, width, True, norms=7, qk_norm=True, window=window, cut=cut)
