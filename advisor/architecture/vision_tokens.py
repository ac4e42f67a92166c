"""Images and frames → tokens in the sequence, and patches in the tower, by model family.

Source: the processors of transformers 5.24: ``image_processing_qwen2_vl.py`` (``smart_resize``), ``video_processing_qwen2_vl.py``,
``video_processing_qwen3_vl.py``, ``processing_gemma3.py``, ``processing_llava.py``, ``processing_paligemma.py``; families that cut images are in
:mod:`advisor.architecture.image_tiles`.
Where an image's size is not known, the most its processor lets through is taken (``exact`` false).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from advisor.architecture import presets
from advisor.architecture.config import defaults_of
from advisor.architecture.image_tiles import of_image, pixels_a_token
from advisor.architecture.keys import Keys
from advisor.job import Model, Vision

# tokens an image at most where the job gives no max_pixels: 28 x 28 x 1280 pixels is the processor class's default (size.longest_edge);
# a hub repository's preprocessor_config.json can raise it
QWEN_IMAGE_TOKENS = 1280
QWEN_FRAME_TOKENS = 768  # video_processing_qwen2_vl: longest_edge 28 x 28 x 768 pixels a frame


class VisionTokens(Struct, frozen=True):
    """A sample's vision: tokens inside the sequence, patches through the tower, the formula with its numbers."""

    tokens: int
    patches: int
    formula: str
    exact: bool


def vision_tokens(model: Model) -> VisionTokens | None:
    """Tokens and patches of one sample's images and frames; ``None`` where the model has no tower, the family is not known, or no vision is stated.

    Raises:
        ConfigError: where the vision part of the config cannot be read.
    """
    vision, parts = model.vision, _parts(model)
    if vision is None or parts is None or (vision.tokens == 0 and not vision.images and not vision.frames):
        return None
    keys, section = parts
    if keys.model_type.startswith("qwen"):
        return _qwen(keys, section, vision)
    return _fixed(keys, section, vision)


def pixels_of_token(model: Model) -> int | None:
    """Pixels that become one token, where an image has as many tokens as its size gives; ``None`` where it has not, or where that is not known.

    Raises:
        ConfigError: where the vision part of the config cannot be read.
    """
    parts = _parts(model)
    patch = _side(parts[1], "patch_size") if parts is not None else None
    return pixels_a_token(parts[0], patch, parts[1].model_type) if parts is not None and patch is not None else None


def _parts(model: Model) -> tuple[Keys, Keys] | None:
    """The keys of a config and of its vision part; ``None`` where it has none, or the model is not known."""
    config = model.config if model.config is not None else _preset_config(model.name)
    if config is None:
        return None
    keys = Keys(config, defaults_of(str(config.get("model_type") or "")))
    written = keys.section("vision_config")
    if written is None and not keys.defaults.get("vision_config"):
        return None
    return keys, written or Keys({}, keys.defaults.get("vision_config"), "vision_config.")


def _preset_config(name: str | None) -> Mapping[str, Any] | None:
    preset = presets.find(name or "")
    return preset.config if preset else None


def _qwen(keys: Keys, section: Keys, vision: Vision) -> VisionTokens | None:
    """A token is ``merge x merge`` patches; two frames are one step of time."""
    merge, patch = section.size("spatial_merge_size", default=2, most=1024), section.size("patch_size", default=14, most=1024)
    side, step = merge * patch, section.size("temporal_patch_size", default=2, most=64)
    if vision.tokens:
        return VisionTokens(vision.tokens, vision.tokens * merge**2, f"{vision.tokens:,} tokens stated x {merge}x{merge} patches", True)
    if vision.frames:
        steps = -(-vision.frames // step)
        if keys.model_type.startswith("qwen3") and vision.max_pixels:  # there max_pixels bounds all frames together
            each = max(1, vision.max_pixels // (side * side * step * steps))
        else:
            each = max(1, vision.max_pixels // side**2) if vision.max_pixels else QWEN_FRAME_TOKENS
        tokens = steps * each
        return VisionTokens(tokens, tokens * merge**2, f"{vision.frames:,} frames / {step} x {each:,} tokens at most", False)
    images = vision.images or 1
    each = max(1, vision.max_pixels // side**2) if vision.max_pixels else QWEN_IMAGE_TOKENS
    where = f"{vision.max_pixels:,} pixels / {side}x{side}" if vision.max_pixels else "the processor's default"
    return VisionTokens(images * each, images * each * merge**2, f"{images:,} images x {each:,} tokens at most ({where})", False)


def _fixed(keys: Keys, section: Keys, vision: Vision) -> VisionTokens | None:
    """Families that bring every image (or tile) to one size."""
    image, patch = _side(section, "image_size"), _side(section, "patch_size")
    if image is None or patch is None:
        return None
    patches, count, exact = (image // patch) ** 2, vision.frames or vision.images or 1, True
    tiled = of_image(keys, image, patch, section.model_type, vision.max_pixels) if not vision.frames else None  # frames are not cut into tiles
    if keys.model_type == "gemma3":
        each = keys.size("mm_tokens_per_image", default=256)
    elif tiled is not None:
        (each, patches), exact = tiled, False
    elif keys.model_type == "internvl":
        each = int(patches * (keys.number("downsample_ratio", default=0.5, most=1.0) or 0.5) ** 2)
    elif keys.model_type in ("llava", "paligemma"):
        each = patches
    else:
        return None
    if vision.tokens:
        shown = max(1, -(-vision.tokens // max(1, each))) * patches if exact else round(vision.tokens * patches / max(1, each))
        return VisionTokens(vision.tokens, shown, f"{vision.tokens:,} tokens stated, {each:,} an image of {patches:,} patches", True)
    return VisionTokens(count * each, count * patches, f"{count:,} images x {each:,} tokens{'' if exact else ' at most'}", exact)


def _side(section: Keys, name: str) -> int | None:
    """A size written as a number or as a pair of equal ones."""
    value = section.raw(name)
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 16 else None
