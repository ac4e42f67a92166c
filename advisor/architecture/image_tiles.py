"""Families whose processor cuts or bounds an image by a rule of its own: tokens in the sequence and patches in the tower, of one image at most.

Source, transformers 5.24: ``processing_llava_next.py`` (``_get_number_of_features``), ``processing_llama4.py`` (``_prompt_split_image``),
``processing_idefics3.py`` and ``processing_smolvlm.py`` (``_get_num_multimodal_tokens``), ``processing_pixtral.py`` with
``image_processing_pixtral.py`` (a break behind every row), ``image_processing_mllama.py`` and ``modeling_mllama.py`` (tiles are attended to across,
and padded to their number), ``processing_internvl.py`` with ``image_processing_got_ocr2.py``. How large the image is, is not known: so at most.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from advisor.architecture.keys import Keys

INTERNVL_TILES = 12  # max_patches, and a thumbnail beside them
LLAMA4_TILES = 16  # max_patches, and the whole image beside them
SPLIT_SIDE = 4  # size.longest_edge is four times max_image_size.longest_edge in the processor's class and in the hub's files
PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))  # configuration_llava_next.py image_grid_pinpoints
Size = tuple[int, int]  # tokens, patches
Rule = Callable[[Keys, int, int, "int | None"], Size]


def of_image(keys: Keys, image: int, patch: int, tower: str, max_pixels: int | None) -> Size | None:
    """``(tokens, patches)`` of one image at most; ``None`` for a family without such a rule.

    Args:
        keys: of the whole config. image, patch: their sides in pixels, of its vision part.
        tower: model_type of the vision part. max_pixels: what the image is brought to before, where that is known.
    """
    kind = "pixtral" if _pixels_decide(keys, tower) else keys.model_type
    rule = _RULES.get(kind)
    return rule(keys, image, patch, max_pixels) if rule is not None else None


def pixels_a_token(keys: Keys, patch: int, tower: str) -> int | None:
    """Pixels that become one token where the size of the image decides how many there are; ``None`` where it does not."""
    if keys.model_type.startswith("qwen"):
        section = keys.section("vision_config")
        return (patch * (section.size("spatial_merge_size", default=2, most=1024) if section is not None else 2)) ** 2
    return (patch * _merge(keys)) ** 2 if _pixels_decide(keys, tower) else None


def _pixels_decide(keys: Keys, tower: str) -> bool:
    return tower == "pixtral" or keys.model_type == "mistral3"


def _merge(keys: Keys) -> int:
    """Patches a side that Mistral Small 3.1's projector brings to one token; Pixtral 12B's brings none together."""
    return keys.size("spatial_merge_size", default=2, most=1024) if keys.model_type == "mistral3" else 1


def _llava_next(keys: Keys, image: int, patch: int, _pixels: int | None) -> Size:
    """The whole image, and the grid of tiles that holds it best, with a newline behind every row of patches."""
    side = image // patch
    written = keys.raw("image_grid_pinpoints")
    grids = [(h // image, w // image) for h, w in _pairs(written) or PINPOINTS]
    rows, columns = max(grids, key=lambda grid: grid[0] * grid[1] * side + grid[0])
    tokens = side * side + rows * side * columns * side + rows * side
    return tokens, (rows * columns + 1) * (side * side + 1)  # CLIP's class token


def _pairs(written: object) -> list[tuple[int, int]]:
    items = written if isinstance(written, list) else []
    return [(a, b) for item in items if isinstance(item, (list, tuple)) and len(item) == 2 for a, b in [item] if isinstance(a, int) and isinstance(b, int)]


def _internvl(keys: Keys, image: int, patch: int, _pixels: int | None) -> Size:
    patches, tiles = (image // patch) ** 2, INTERNVL_TILES + 1
    each = int(patches * (keys.number("downsample_ratio", default=0.5, most=1.0) or 0.5) ** 2)
    return tiles * each, tiles * patches


def _llama4(keys: Keys, image: int, patch: int, _pixels: int | None) -> Size:
    """Sixteen tiles with a separator each, the whole image, and three marks around."""
    section, patches = keys.section("vision_config"), (image // patch) ** 2
    ratio = (section.number("pixel_shuffle_ratio", default=0.5, most=1.0) if section is not None else None) or 0.5
    return (LLAMA4_TILES + 1) * int(patches * ratio**2) + LLAMA4_TILES + 3, (LLAMA4_TILES + 1) * (patches + 1)


def _split(keys: Keys, image: int, patch: int, _pixels: int | None) -> Size:
    """Idefics3, SmolVLM: four by four tiles with two marks each and a line end a row, and the whole image with three."""
    patches = (image // patch) ** 2
    each = patches // keys.size("scale_factor", default=2, most=1024) ** 2
    return SPLIT_SIDE * ((each + 2) * SPLIT_SIDE + 1) + each + 3, (SPLIT_SIDE**2 + 1) * patches


def _pixtral(keys: Keys, image: int, patch: int, pixels: int | None) -> Size:
    """The image itself, its longer side bounded, with a break behind every row."""
    longest = min(image, isqrt(pixels)) if pixels else image
    side = max(1, longest // (patch * _merge(keys)))
    return side * (side + 1), (side * _merge(keys)) ** 2


def _mllama(keys: Keys, image: int, patch: int, _pixels: int | None) -> Size:
    """Llama 3.2 Vision: one token of the sequence; four tiles (padding among them) that some layers attend to across."""
    section = keys.section("vision_config")
    tiles = section.size("max_num_tiles", default=4, most=1024) if section is not None else 4
    return 1, tiles * ((image // patch) ** 2 + 1)


_RULES: dict[str, Rule] = {
    "llava_next": _llava_next, "internvl": _internvl, "llama4": _llama4, "idefics3": _split, "smolvlm": _split, "pixtral": _pixtral, "mllama": _mllama,
}  # fmt: skip
