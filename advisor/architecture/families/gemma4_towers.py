"""Gemma 4's towers: a vision tower built of Gemma's own blocks, and a conformer for audio (E2B, E4B).

Source: ``modeling_gemma4.py`` and ``configuration_gemma4.py`` of transformers 5.24 (``Gemma4VisionModel``, ``Gemma4AudioModel``,
``Gemma4MultimodalEmbedder``); shapes and names checked by building on the meta device. The audio tower's layers are tensors outside the blocks:
their parameters are counted, and what they keep of a recording is not.
"""

from __future__ import annotations

from advisor.architecture.families.towers import Tower
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import gated_mlp, linear, norm, parameter, split_attention
from advisor.architecture.shape import Block, Tensor

_AXES = 2  # a table of positions for rows and one for columns
_FOUR = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def vision_tower(keys: Keys, text_hidden: int) -> Tower:
    """The tower, its patches' embedding, and the projection to the text model's width."""
    hidden, heads, layers = keys.size("hidden_size"), keys.size("num_attention_heads", most=65_536), keys.size("num_hidden_layers", most=MOST_LAYERS)
    kv, dim, width = keys.size("num_key_value_heads", most=65_536), keys.size("head_dim", most=65_536), keys.size("intermediate_size")
    patch, places = keys.size("patch_size", most=4096), keys.size("position_embedding_size")
    bias = keys.flag("attention_bias")
    tensors = (
        *split_attention(hidden, heads, kv, dim, bias=bias, out_bias=bias),
        *norm("q_norm", dim),
        *norm("k_norm", dim),
        *gated_mlp(hidden, width),
        *(t for name in _FOUR for t in norm(name, hidden)),
    )
    outer = (
        *linear("input_proj", 3 * patch**2, hidden, "vision"),
        *parameter("position_embedding_table", (_AXES, places, hidden), "vision"),
        *linear("embedding_projection", hidden, text_hidden, "projector"),
    )
    block = Block("vision", layers, tensors, heads, kv, dim, dim, width, True, norms=len(_FOUR), qk_norm=True)
    return Tower(hidden, block, outer)


def audio_tensors(keys: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """The conformer's parameters and its projection to the text model's width."""
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers", most=MOST_LAYERS)
    heads, kernel, out = keys.size("num_attention_heads", most=65_536), keys.size("conv_kernel_size", most=4096), keys.size("output_proj_dims")
    if hidden % heads:
        raise keys.wrong(("num_attention_heads",), heads, f"a divisor of the hidden size {hidden:,}")
    first, second = _channels(keys)
    half = [
        t
        for number in ("1", "2")
        for t in (
            *linear(f"feed_forward{number}.ffw_layer_1", hidden, 4 * hidden, "vision", times=layers),
            *linear(f"feed_forward{number}.ffw_layer_2", 4 * hidden, hidden, "vision", times=layers),
            *_scales(layers, hidden, f"feed_forward{number}.pre_layer_norm", f"feed_forward{number}.post_layer_norm"),
        )
    ]
    attention = [
        t for name in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj") for t in linear(f"self_attn.{name}", hidden, hidden, "vision", times=layers)
    ]
    return (
        *parameter("layer0.conv", (first, 1, 3, 3), "vision"),
        *parameter("layer0.norm", (first,), "vision"),
        *parameter("layer1.conv", (second, first, 3, 3), "vision"),
        *parameter("layer1.norm", (second,), "vision"),
        *linear("input_proj_linear", first // 4 * second, hidden, "vision"),
        *half,
        *attention,
        *parameter("self_attn.per_dim_scale", (hidden // heads,), "vision", times=layers),
        *linear("lconv1d.linear_start", hidden, 2 * hidden, "vision", times=layers),
        *linear("lconv1d.linear_end", hidden, hidden, "vision", times=layers),
        *parameter("lconv1d.depthwise_conv1d", (hidden, 1, kernel), "vision", times=layers),
        *_scales(layers, hidden, "lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"),
        *linear("output_proj", hidden, out, "vision", bias=True),
        *linear("embedding_projection", out, text_hidden, "projector"),
    )


def _scales(layers: int, hidden: int, *names: str) -> tuple[Tensor, ...]:
    return tuple(t for name in names for t in parameter(name, (hidden,), "vision", times=layers))


def _channels(keys: Keys) -> tuple[int, int]:
    """Channels of the two strided convolutions over 128 mel bins."""
    found = keys.items("subsampling_conv_channels", most=2) or [128, 32]
    if len(found) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 20 for n in found):
        raise keys.wrong(("subsampling_conv_channels",), found, "two numbers of channels")
    return found[0], found[1]
