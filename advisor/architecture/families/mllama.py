"""Llama 3.2 Vision: a Llama whose every fifth layer attends to the images in place of the text, and a tower of local and global layers.

Source: ``modeling_mllama.py`` and ``configuration_mllama.py`` of transformers 5.24; shapes and names checked by building on the meta device.
The layers that attend to images do not run for a batch without any.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.architecture.config import defaults_of
from advisor.architecture.families.dense import Heads, Traits, attention, dense_block, heads_of, size_of
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.layers import grouped
from advisor.architecture.pieces import embedding, gated_mlp, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor

_SELF, _CROSS = Traits(), Traits(qk_norm="head")
_SPECIAL = 8  # rows of the embedding beyond the vocabulary: image tokens, which the head cannot say
_ACROSS = (3, 8, 13, 18, 23, 28, 33, 38)  # MllamaTextConfig's cross_attention_layers


def read(keys: Keys) -> Architecture:
    """The architecture; the text model alone where the config is its own (``mllama_text_model``)."""
    inner = keys.section("text_config", defaults=defaults_of("mllama_text_model"))
    text = _text(inner if inner is not None else keys)
    section = keys.section("vision_config", defaults=defaults_of("mllama_vision_model"))
    if section is None:
        return replace(text, model_type=keys.model_type)
    blocks, outer = _tower(section)
    hidden, seen = text.hidden, section.size("vision_output_dim")
    projector = linear("multi_modal_projector", seen, hidden, "projector", bias=True)
    return replace(
        text, model_type=keys.model_type, outer=(*text.outer, *outer, *projector), vision=blocks, vision_hidden=section.size("hidden_size"),
        vision_activation=section.word("hidden_act", default="gelu"), unread=(*text.unread, *section.unread()),
        undescribed="keys and values of the image's tiles in the layers that attend to them",
    )  # fmt: skip


def _text(keys: Keys) -> Architecture:
    size = size_of(keys)
    heads, width = heads_of(keys, size.hidden), keys.size("intermediate_size")
    across = keys.items("cross_attention_layers", most=MOST_LAYERS)
    at = set(_ACROSS if across is None else across)

    def build(crosses: bool, count: int) -> Block:
        return _crossing(keys, size.hidden, heads, width, count) if crosses else dense_block(keys, _SELF, size.hidden, heads, width, count=count)

    head = () if size.tied else linear("lm_head", size.hidden, size.vocab, "head")
    return Architecture(
        model_type=keys.model_type, hidden=size.hidden, vocab=size.vocab, tied=size.tied, max_positions=keys.optional("max_position_embeddings"),
        norm="rmsnorm", activation=keys.word("hidden_act", default="silu"), blocks=grouped([index in at for index in range(size.layers)], build),
        outer=(*embedding("embed_tokens", size.vocab + _SPECIAL, size.hidden), *norm("norm", size.hidden), *head),
    )  # fmt: skip


def _crossing(keys: Keys, hidden: int, heads: Heads, width: int, count: int) -> Block:
    """A layer whose queries are the text's and whose keys and values are the image's, with a gate behind each half."""
    gates = (*parameter("cross_attn_attn_gate", (1,), "other"), *parameter("cross_attn_mlp_gate", (1,), "other"))
    block = dense_block(keys, _CROSS, hidden, heads, width, count=count)
    own = (*attention(keys, _CROSS, hidden, heads), *gated_mlp(hidden, width), *gates)
    return replace(block, tensors=(*own, *(t for t in block.tensors if t.name.endswith("layernorm"))))


def _tower(keys: Keys) -> tuple[tuple[Block, ...], tuple[Tensor, ...]]:
    hidden, number = keys.size("hidden_size"), keys.size("attention_heads", "num_attention_heads", most=65_536)
    if hidden % number:
        raise keys.wrong(("attention_heads",), number, f"a divisor of the hidden size {hidden:,}")
    width, patch = keys.size("intermediate_size"), keys.size("patch_size", most=4096)
    image, tiles, channels = keys.size("image_size"), keys.size("max_num_tiles", most=1024), keys.size("num_channels", default=3, most=64)
    places, ratios = (image // patch) ** 2 + 1, _ratios(keys, tiles) + 1
    keys.seen.add("intermediate_layers_indices")
    common = (
        *split_attention(hidden, number, number, hidden // number),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *norm("input_layernorm", hidden, bias=True),
        *norm("post_attention_layernorm", hidden, bias=True),
    )
    gates = (*parameter("gate_attn", (1,), "other"), *parameter("gate_ffn", (1,), "other"))
    dim = hidden // number
    local = Block("vision", keys.size("num_hidden_layers", most=MOST_LAYERS), common, number, number, dim, dim, width, False)
    whole = replace(local, count=keys.size("num_global_layers", most=MOST_LAYERS), tensors=(*common, *gates))
    gate = parameter("gate", (1,), "vision", times=3)
    outer = (
        *parameter("class_embedding", (hidden,), "vision"),
        *parameter("patch_embedding", (hidden, channels, patch, patch), "vision"),
        *gate,
        *parameter("gated_positional_embedding.embedding", (places, hidden), "vision"),
        *parameter("tile_embedding", (ratios, tiles * places * hidden), "vision"),
        *parameter("tile_positional_embedding", (ratios, tiles * hidden), "vision", times=2),
        *norm("layernorm_pre", hidden, bias=True),
        *norm("layernorm_post", hidden, bias=True),
    )
    return (local, whole), outer


def _ratios(keys: Keys, tiles: int) -> int:
    """How many shapes an image's tiles can have: as listed, else all of at most so many tiles."""
    listed = keys.items("supported_aspect_ratios", most=10_000) if keys.written("supported_aspect_ratios") else None
    return len(listed) if listed is not None else sum(1 for wide in range(1, tiles + 1) for high in range(1, tiles + 1) if wide * high <= tiles)
