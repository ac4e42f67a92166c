"""Images and frames in tokens and patches."""

import pytest

from advisor.architecture.vision_tokens import vision_tokens
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


def test_no_vision_no_tokens() -> None:
    assert vision_tokens(Model(name="Qwen/Qwen2.5-VL-7B-Instruct")) is None
    assert vision_tokens(Model(name="Qwen/Qwen2.5-VL-7B-Instruct", vision=Vision(tokens=0))) is None
    assert vision_tokens(Model(name="Qwen/Qwen2.5-7B", vision=Vision(images=1, max_pixels=100_000))) is None
