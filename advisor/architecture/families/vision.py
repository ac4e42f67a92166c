"""Models that see: a vision tower and projector before a text model, and towers alone (ViT, CLIP).

Source: as in :mod:`advisor.architecture.families.towers`. The text model is read by the reader of its own ``model_type``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from msgspec.structs import replace

from advisor.architecture.config import defaults_of
from advisor.architecture.families import READERS
from advisor.architecture.families.towers import Tower, clip_like, dinov2, llama4, pixtral, qwen_like, vit
from advisor.architecture.keys import MOST_LAYERS, Keys
from advisor.architecture.pieces import embedding, linear, norm, parameter, plain_mlp, split_attention
from advisor.architecture.shape import Architecture, Block, Tensor

_TEXT = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "paligemma": "gemma",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "internvl": "qwen2",
}


def read(keys: Keys) -> Architecture:
    """The architecture; ``blocks`` are the text layers, ``vision`` the tower's."""
    if keys.model_type in ("vit", "dinov2"):
        return _vit(keys)
    if keys.model_type == "clip":
        return _clip(keys)
    text = _text(keys)
    section = keys.section("vision_config") or Keys({}, keys.defaults.get("vision_config"), "vision_config.")
    section.model_type = section.model_type or str(section.defaults.get("model_type") or keys.model_type)
    tower = _tower(keys, section, text.hidden)
    outer = (*text.outer, *tower.outer, *_projector(keys, section, tower.hidden, text.hidden))
    keys.seen.update(("text_config", "vision_config", "image_token_index", "projection_dim"))
    return replace(
        text, model_type=keys.model_type, outer=outer, vision=(tower.block,), vision_hidden=tower.hidden, unread=(*text.unread, *section.unread()),
        vision_activation=section.word("hidden_act", default="quick_gelu" if section.model_type in _QUICK else "gelu"),
        vision_rotary=keys.model_type.startswith("qwen") or section.model_type in ("pixtral", "llama4_vision_model"), vision_unused=_unused(keys),
    )  # fmt: skip


_QUICK = ("qwen2_vl", "clip_vision_model")  # x times the sigmoid of 1.702 x, where the config does not say


def _unused(keys: Keys) -> int:
    """LLaVA reads an earlier layer of its tower than the last (``vision_feature_layer`` -2); what comes after it is in no gradient's way."""
    layer = keys.raw("vision_feature_layer") if keys.model_type in ("llava", "llava_next") else -1
    return max(0, -layer - 1) if isinstance(layer, int) and not isinstance(layer, bool) and -16 <= layer < 0 else 0


def _text(keys: Keys) -> Architecture:
    """The text model's own reader; older configs hold its keys at the top.

    What a written ``text_config`` leaves out is the default of its own class: the composite's defaults are those of a text model that is not
    written at all (transformers 5.24, ``CONFIG_MAPPING[text_config["model_type"]](**text_config)`` in ``configuration_idefics3.py`` and its like).
    """
    inner = keys.section("text_config")
    if inner is None:
        inner = Keys({name: value for name, value in keys.config.items() if name != "model_type"}, keys.defaults.get("text_config"))
        keys.seen.update(keys.config)
    inner.assumed, inner.gated, inner.source = keys.assumed, keys.gated, keys.source
    inner.model_type = inner.model_type or str(inner.defaults.get("model_type") or _TEXT.get(keys.model_type, "llama"))
    if inner.model_type not in READERS:
        inner.model_type = _TEXT.get(keys.model_type, "llama")
    if keys.written("text_config"):
        inner.defaults = defaults_of(inner.model_type) or inner.defaults
    # whether the head is tied is written at the top, in the text config, or in both
    if keys.written("tie_word_embeddings") or not inner.written("tie_word_embeddings"):
        inner.config = {**inner.config, "tie_word_embeddings": keys.flag("tie_word_embeddings")}
    reader = importlib.import_module(f"advisor.architecture.families.{READERS[inner.model_type]}")
    architecture: Architecture = reader.read(inner)
    return replace(architecture, unread=(*architecture.unread, *inner.unread()))


def _tower(keys: Keys, section: Keys, text_hidden: int) -> Tower:
    kind = keys.model_type
    if kind.startswith("qwen"):
        section.model_type = kind
        return qwen_like(section, text_hidden)
    if kind == "mistral3" or section.model_type == "pixtral":
        return pixtral(section)
    simple: dict[str, Callable[[Keys], Tower]] = {"llama4": llama4, "internvl": lambda inner: vit(inner, scaled=True)}
    return simple.get(kind, clip_like)(section)


def _projector(keys: Keys, section: Keys, seen: int, hidden: int) -> tuple[Tensor, ...]:
    """From the tower's size to the text model's."""
    kind = keys.model_type
    bias = keys.flag("multimodal_projector_bias", default=kind != "mistral3")
    if kind == "gemma3":
        return (*parameter("mm_input_projection_weight", (seen, hidden), "projector"), *norm("mm_soft_emb_norm", seen))
    if kind == "paligemma":
        return linear("linear", seen, hidden, "projector", bias=True)
    if kind in ("llava", "llava_next"):
        more = parameter("image_newline", (hidden,), "projector") if kind == "llava_next" else ()
        return (*linear("linear_1", seen, hidden, "projector", bias=bias), *linear("linear_2", hidden, hidden, "projector", bias=bias), *more)
    if kind == "mistral3":
        merge = keys.size("spatial_merge_size", default=2, most=1024) ** 2
        return (
            *norm("norm", seen),
            *linear("merging_layer", seen * merge, seen, "projector"),
            *linear("linear_1", seen, hidden, "projector", bias=bias),
            *linear("linear_2", hidden, hidden, "projector", bias=bias),
        )
    if kind in ("idefics3", "smolvlm"):
        return linear("proj", seen * keys.size("scale_factor", default=2 if kind == "idefics3" else 4, most=1024) ** 2, hidden, "projector")
    if kind == "internvl":
        merged = int(seen * (1 / (keys.number("downsample_ratio", default=0.5, most=1.0) or 0.5)) ** 2)
        return (
            *norm("layer_norm", merged, bias=True),
            *linear("linear_1", merged, hidden, "projector", bias=True),
            *linear("linear_2", hidden, hidden, "projector", bias=True),
        )
    if kind == "llama4":
        return linear("linear_1", section.size("vision_output_dim", "projector_output_dim", default=4096), hidden, "projector")
    return ()  # Qwen's merger is part of the tower


def _vit(keys: Keys) -> Architecture:
    keys.required("hidden_size")
    keys.required("num_hidden_layers", most=MOST_LAYERS)
    second = keys.model_type == "dinov2"
    tower = dinov2(keys) if second else vit(keys)
    number = keys.optional("num_labels", most=10_000_000)
    labels = keys.config.get("id2label")
    classes = number or (len(labels) if isinstance(labels, dict) and labels else 2)
    return Architecture(
        model_type=keys.model_type,
        hidden=tower.hidden,
        vocab=0,
        tied=True,
        max_positions=None,
        norm="layernorm",
        activation="silu" if tower.block.gated else keys.word("hidden_act", default="gelu"),
        blocks=(replace(tower.block, kind="encoder"),),  # the tower is the model: its patches are the sequence
        # DINOv2 classifies by the class token and the mean of the patches, side by side
        outer=(*tower.outer, *linear("classifier", (2 if second else 1) * tower.hidden, classes, "other", bias=True)),
        attention_dropout=keys.fraction("attention_probs_dropout_prob"),
        hidden_dropout=keys.fraction("hidden_dropout_prob"),
        causal=False,
        rotary=False,
        classes=classes,
    )


def _clip(keys: Keys) -> Architecture:
    text, section = keys.section("text_config"), keys.section("vision_config")
    if text is None or section is None:
        missing = "text_config" if text is None else "vision_config"
        raise keys.wrong((missing,), None, "a mapping of keys to values: a CLIP has both towers")
    section.model_type = "clip_vision_model"
    tower = clip_like(section)
    hidden, layers, number = text.size("hidden_size"), text.size("num_hidden_layers", most=MOST_LAYERS), text.size("num_attention_heads", most=65_536)
    width, vocab, positions = text.size("intermediate_size"), text.size("vocab_size"), text.size("max_position_embeddings", default=77)
    if hidden % number:
        raise text.wrong(("num_attention_heads",), number, f"a divisor of the hidden size {hidden:,}")
    shared = keys.size("projection_dim", default=512)
    dim = hidden // number
    tensors = (
        *split_attention(hidden, number, number, dim, names=("q_proj", "k_proj", "v_proj", "out_proj"), bias=True, out_bias=True),
        *plain_mlp(hidden, width, names=("fc1", "fc2"), bias=True),
        *norm("layer_norm1", hidden, bias=True),
        *norm("layer_norm2", hidden, bias=True),
    )
    outer = (
        *parameter("logit_scale", (), "other"),
        *embedding("token_embedding", vocab, hidden),
        *parameter("position_embedding", (positions, hidden), "position"),
        *norm("final_layer_norm", hidden, bias=True),
        *tower.outer,
        *linear("visual_projection", tower.hidden, shared, "projector"),
        *linear("text_projection", hidden, shared, "projector"),
    )
    return Architecture(
        model_type="clip",
        hidden=hidden,
        vocab=vocab,
        tied=True,
        max_positions=positions,
        norm="layernorm",
        activation=text.word("hidden_act", default="quick_gelu"),
        blocks=(Block("encoder", layers, tensors, number, number, dim, dim, width, gated=False),),
        outer=outer,
        vision=(tower.block,),
        vision_hidden=tower.hidden,
        attention_dropout=text.fraction("attention_dropout"),
        rotary=False,
        classes=0,
    )
