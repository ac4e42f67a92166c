"""Images and frames in tokens and patches."""

import pytest

from advisor.architecture.vision_tokens import pixels_of_token, vision_tokens
from advisor.job import Model, Vision


@pytest.mark.parametrize(
    ("name", "vision", "tokens", "patches"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", Vision(max_pixels=1_003_520), 1280, 5120),  # 1,003,520 / 28 / 28 = 1280
        ("Qwen/Qwen2.5-VL-7B-Instruct", Vision(images=2, max_pixels=28 * 28 * 100), 200, 800),
        ("Qwen/Qwen2-VL-2B-Instruct", Vision(frames=8, max_pixels=28 * 28 * 100), 400, 1600),
        ("Qwen/Qwen2-VL-2B-Instruct", Vision(tokens=500), 500, 2000),
        ("google/gemma-3-4b-it", Vision(images=3), 768, 3 * 4096),
    ],
)
def test_tokens_and_patches(name: str, vision: Vision, tokens: int, patches: int) -> None:
    found = vision_tokens(Model(name=name, vision=vision))
    assert found is not None
    assert (found.tokens, found.patches) == (tokens, patches)
    assert found.formula


TOWER = {"image_size": 336, "patch_size": 14}


@pytest.mark.parametrize(
    ("config", "tokens", "patches"),
    [
        # 24 x 24 whole, 2 x 2 tiles of them, 48 newlines; CLIP's class token in each of five
        ({"model_type": "llava_next", "vision_config": TOWER}, 576 + 2304 + 48, 5 * 577),
        ({"model_type": "llava_next", "vision_config": TOWER, "image_grid_pinpoints": [[336, 672], [672, 336]]}, 576 + 1152 + 48, 3 * 577),
        # Idefics3: 26 x 26 / 4 = 169 a tile; 4 x 4 tiles with two marks, four line ends, the whole with three
        ({"model_type": "idefics3", "scale_factor": 2, "vision_config": {"image_size": 364, "patch_size": 14}}, 16 * 171 + 4 + 172, 17 * 676),
        ({"model_type": "smolvlm", "scale_factor": 4, "vision_config": {"image_size": 512, "patch_size": 16}}, 16 * 66 + 4 + 67, 17 * 1024),
        ({"model_type": "llava", "vision_config": {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}}, 64 * 65, 64 * 64),
        (
            {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"model_type": "pixtral", "image_size": 1540, "patch_size": 14}},
            55 * 56,
            110 * 110,
        ),
        ({"model_type": "mllama", "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}}, 1, 4 * 1601),
        ({"model_type": "llama4", "vision_config": {"image_size": 336, "patch_size": 14, "pixel_shuffle_ratio": 0.5}}, 17 * 144 + 19, 17 * 577),
        ({"model_type": "llava", "vision_config": TOWER}, 576, 576),
        ({"model_type": "internvl", "downsample_ratio": 0.5, "vision_config": {"image_size": [448, 448], "patch_size": [14, 14]}}, 13 * 256, 13 * 1024),
    ],
)
def test_one_image_at_most(config: dict[str, object], tokens: int, patches: int) -> None:
    found = vision_tokens(Model(config=config, vision=Vision(images=1)))
    assert found is not None
    assert (found.tokens, found.patches) == (tokens, patches)
    assert found.exact == (tokens == 576)


def test_pixels_that_become_a_token() -> None:
    assert pixels_of_token(Model(name="Qwen/Qwen2.5-VL-7B-Instruct")) == 28 * 28
    assert pixels_of_token(Model(config={"model_type": "llava", "vision_config": {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}})) == 256
    assert pixels_of_token(Model(name="google/gemma-3-4b-it")) is None
    assert pixels_of_token(Model(name="nobody/knows-this")) is None


def test_no_vision_no_tokens() -> None:
    assert vision_tokens(Model(name="Qwen/Qwen2.5-VL-7B-Instruct")) is None
    assert vision_tokens(Model(name="Qwen/Qwen2.5-VL-7B-Instruct", vision=Vision(tokens=0))) is None
    assert vision_tokens(Model(name="Qwen/Qwen2.5-7B", vision=Vision(images=1, max_pixels=100_000))) is None
