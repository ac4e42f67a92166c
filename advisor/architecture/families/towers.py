"""Vision towers: their blocks, their tables, and the projector to the text model.

Source: ``modeling_{clip,siglip,qwen2_vl,qwen2_5_vl,qwen3_vl,pixtral,llama4,internvl,idefics3}.py`` of transformers 5.24; shapes and names
checked by building on the meta device.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import fused_attention, gated_mlp, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Block, Tensor


class Tower(Struct, frozen=True):
    """A vision tower: hidden size, layers, tensors outside the layers (roles ``vision`` and ``projector``)."""

    hidden: int
    block: Block
    outer: tuple[Tensor, ...]


def _square(keys: Keys, name: str, default: int) -> int:
    """Image and patch sizes are a number or a pair of equal ones."""
    value = keys.raw(name)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], int) and not isinstance(value[0], bool) and value[0] > 0:
        return value[0]
    return keys.size(name, default=default)


def _patches(name: str, hidden: int, kernel: tuple[int, ...], *, bias: bool) -> tuple[Tensor, ...]:
    return (*parameter(name, (hidden, *kernel), "vision"), *(parameter(f"{name}.bias", (hidden,), "vision") if bias else ()))


def _dimensions(keys: Keys, *, heads: tuple[str, ...] = ("num_attention_heads",), depth: tuple[str, ...] = ("num_hidden_layers",)) -> tuple[int, int, int]:
    hidden, number = keys.size("hidden_size"), keys.size(*heads, most=65_536)
    if hidden % number:
        raise keys.wrong(heads, number, f"a divisor of the hidden size {hidden:,}")
    return hidden, number, keys.size(*depth, most=MOST_LAYERS)


def _block(layers: int, number: int, hidden: int, width: int, tensors: tuple[Tensor, ...], *, gated: bool = False, window: int | None = None) -> Block:
    dim = hidden // number
    return Block("vision", layers, tensors, number, number, dim, dim, width, gated, window=window)


def clip_like(keys: Keys) -> Tower:
    """CLIP (a class token, a norm before, no bias on patches), SigLIP and Idefics3 (neither)."""
    hidden, number, layers = _dimensions(keys)
    width, channels = keys.size("intermediate_size"), keys.size("num_channels", default=3)
    image, patch = _square(keys, "image_size", 224), _square(keys, "patch_size", 16)
    clip = keys.model_type in ("clip_vision_model", "clip_vision") or keys.model_type == "clip"
    tensors = (
        *split_attention(hidden, number, number, hidden // number, names=("q_proj", "k_proj", "v_proj", "out_proj"), bias=True, out_bias=True),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *norm("layer_norm1", hidden, bias=True),
        *norm("layer_norm2", hidden, bias=True),
    )
    places = (image // patch) ** 2 + (1 if clip else 0)
    outer = (
        *(parameter("class_embedding", (hidden,), "vision") if clip else ()),
        *_patches("patch_embedding", hidden, (channels, patch, patch), bias=not clip),
        *parameter("position_embedding", (places, hidden), "vision"),
        *(norm("pre_layrnorm", hidden, bias=True) if clip else ()),
        *norm("post_layernorm", hidden, bias=True),
        *(_pooling(hidden, width) if keys.model_type == "siglip_vision_model" and keys.flag("vision_use_head", default=True) else ()),
    )
    return Tower(hidden, _block(layers, number, hidden, width, tensors), outer)


def _pooling(hidden: int, width: int) -> tuple[Tensor, ...]:
    """SigLIP's attention pooling head, there unless ``vision_use_head`` is false."""
    return (
        *parameter("probe", (1, 1, hidden), "vision"),
        *parameter("in_proj_weight", (3 * hidden, hidden), "vision"),
        *parameter("in_proj_bias", (3 * hidden,), "vision"),
        *linear("out_proj", hidden, hidden, "vision", bias=True),
        *norm("layernorm", hidden, bias=True),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True, role="vision"),
    )


def qwen_like(keys: Keys, text_hidden: int) -> Tower:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: 3-D patches, fused qkv, a merger of 2 x 2 patches that projects to the text model's size."""
    second = "qwen2_5" in keys.model_type
    third = "qwen3" in keys.model_type
    if second or third:
        hidden, number, layers = _dimensions(keys, heads=("num_heads",), depth=("depth",))
        projected = keys.optional("out_hidden_size") or text_hidden
        width = keys.size("intermediate_size")
    else:
        hidden, number, layers = keys.size("embed_dim"), keys.size("num_heads", most=65_536), keys.size("depth", most=MOST_LAYERS)
        projected, width = keys.size("hidden_size"), int(keys.number("mlp_ratio", default=4) * hidden)
    if hidden % number:
        raise keys.wrong(("num_heads",), number, f"a divisor of the tower's hidden size {hidden:,}")
    channels, patch, frames = keys.size("in_channels", "in_chans", default=3), keys.size("patch_size", default=14), keys.size("temporal_patch_size", default=2)
    keys.seen.update(("window_size", "tokens_per_second"))
    merged = hidden * keys.size("spatial_merge_size", default=2, most=1024) ** 2
    if second:
        feed = gated_mlp(hidden, width, bias=True)
    else:
        feed = plain_mlp(hidden, width, names=("linear_fc1", "linear_fc2") if third else ("fc1", "fc2"), bias=True)
    tensors = (
        *fused_attention(hidden, number, number, hidden // number, names=("qkv", "proj"), bias=True, out_bias=True),
        *feed,
        *norm("norm1", hidden, bias=not second),
        *norm("norm2", hidden, bias=not second),
    )
    outer = (
        *_patches("proj", hidden, (channels, frames, patch, patch), bias=third),
        *(parameter("pos_embed", (keys.size("num_position_embeddings", default=2304), hidden), "vision") if third else ()),
        *_merger(keys, hidden, merged, projected, second=second, third=third),
    )
    return Tower(hidden, _block(layers, number, hidden, width, tensors, gated=second), outer)


def _merger(keys: Keys, hidden: int, merged: int, projected: int, *, second: bool, third: bool) -> tuple[Tensor, ...]:
    first, last = ("linear_fc1", "linear_fc2") if third else ("0", "2")
    layers = (*linear(first, merged, merged, "projector", bias=True), *linear(last, merged, projected, "projector", bias=True))
    deep = keys.items("deepstack_visual_indexes") if third else None
    count = len(deep) if deep is not None else 0
    more = tuple(Tensor(t.name, t.shape, t.role, t.linear, count) for t in (*norm("norm", merged, bias=True), *layers)) if count else ()
    return (*norm("norm" if third else "ln_q", hidden, bias=not second), *layers, *more)


def pixtral(keys: Keys) -> Tower:
    """Pixtral: rotary positions, RMS norms, a gated MLP, no biases."""
    hidden, number, layers = _dimensions(keys)
    width, channels, patch = keys.size("intermediate_size"), keys.size("num_channels", default=3), _square(keys, "patch_size", 16)
    tensors = (
        *split_attention(hidden, number, number, hidden // number),
        *gated_mlp(hidden, width),
        *norm("attention_norm", hidden),
        *norm("ffn_norm", hidden),
    )
    outer = (*_patches("patch_conv", hidden, (channels, patch, patch), bias=False), *norm("ln_pre", hidden))
    return Tower(hidden, _block(layers, number, hidden, width, tensors, gated=True), outer)


def vit(keys: Keys, *, scaled: bool = False) -> Tower:
    """ViT; ``scaled``: InternVL's, with a factor on each branch."""
    hidden, number, layers = _dimensions(keys)
    width, channels = keys.size("intermediate_size"), keys.size("num_channels", default=3)
    image, patch = _square(keys, "image_size", 224), _square(keys, "patch_size", 16)
    bias = keys.flag("attention_bias") if scaled else keys.flag("qkv_bias", default=True)
    tensors = (
        *split_attention(
            hidden, number, number, hidden // number, names=("q_proj", "k_proj", "v_proj", "projection_layer" if scaled else "o_proj"), bias=bias, out_bias=True
        ),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *norm("layernorm_before", hidden, bias=True),
        *norm("layernorm_after", hidden, bias=True),
        *((*parameter("lambda_1", (hidden,), "vision"), *parameter("lambda_2", (hidden,), "vision")) if scaled else ()),
    )
    outer = (
        *parameter("cls_token", (1, 1, hidden), "vision"),
        *parameter("position_embeddings", (1, (image // patch) ** 2 + 1, hidden), "vision"),
        *_patches("projection", hidden, (channels, patch, patch), bias=True),
        *(() if scaled else norm("layernorm", hidden, bias=True)),
    )
    return Tower(hidden, _block(layers, number, hidden, width, tensors), outer)


def dinov2(keys: Keys) -> Tower:
    """DINOv2: a ViT with a factor on each branch, and in its largest size a gated MLP of two thirds the width, rounded to eight."""
    hidden, number, layers = _dimensions(keys)
    keys.seen.update(("layerscale_value", "drop_path_rate", "apply_layernorm", "reshape_hidden_states"))
    channels, image, patch = keys.size("num_channels", default=3), _square(keys, "image_size", 224), _square(keys, "patch_size", 14)
    gated, width = keys.flag("use_swiglu_ffn"), hidden * keys.size("mlp_ratio", default=4, most=1024)
    width = (width * 2 // 3 + 7) // 8 * 8 if gated else width
    tensors = (
        *split_attention(hidden, number, number, hidden // number, bias=keys.flag("qkv_bias", default=True), out_bias=True),
        *(gated_mlp(hidden, width, bias=True) if gated else plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True)),
        *norm("norm1", hidden, bias=True),
        *norm("norm2", hidden, bias=True),
        *parameter("lambda1", (hidden,), "vision"),
        *parameter("lambda1", (hidden,), "vision"),
    )
    outer = (
        *parameter("cls_token", (1, 1, hidden), "vision"),
        *parameter("mask_token", (1, hidden), "vision"),
        *parameter("position_embeddings", (1, (image // patch) ** 2 + 1, hidden), "vision"),
        *_patches("projection", hidden, (channels, patch, patch), bias=True),
        *norm("layernorm", hidden, bias=True),
    )
    return Tower(hidden, _block(layers, number, hidden, width, tensors, gated=gated), outer)


def llama4(keys: Keys) -> Tower:
    """Llama 4: patches through a linear layer, and a two-layer adapter after pixel shuffling (its input is as wide as the MLP)."""
    hidden, number, layers = _dimensions(keys)
    width, channels = keys.size("intermediate_size"), keys.size("num_channels", default=3)
    image, patch = _square(keys, "image_size", 448), _square(keys, "patch_size", 14)
    inner, projected = keys.size("projector_input_dim", default=4096), keys.size("projector_output_dim", default=4096)
    tensors = (
        *split_attention(hidden, number, number, hidden // number, bias=True, out_bias=True),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *norm("input_layernorm", hidden, bias=True),
        *norm("post_attention_layernorm", hidden, bias=True),
    )
    outer = (
        *parameter("class_embedding", (hidden,), "vision"),
        *parameter("positional_embedding_vlm", ((image // patch) ** 2 + 1, hidden), "vision"),
        *linear("linear", channels * patch * patch, hidden, "vision"),
        *norm("layernorm_pre", hidden, bias=True),
        *norm("layernorm_post", hidden, bias=True),
        *linear("fc1", width, inner, "projector"),
        *linear("fc2", inner, projected, "projector"),
    )
    return Tower(hidden, _block(layers, number, hidden, width, tensors), outer)
