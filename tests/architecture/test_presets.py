"""Models are found by id, alias, mirror and path, and only what is the same shape is found."""

import time

import pytest

from advisor.architecture import presets


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("META-LLAMA/llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("smollm-135m", "HuggingFaceTB/SmolLM-135M"),
        ("unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Llama-3.1-8B"),
        ("unsloth/Qwen2.5-7B-unsloth-bnb-4bit", "Qwen/Qwen2.5-7B"),
        ("/data/models/Mistral-7B-v0.1/", "mistralai/Mistral-7B-v0.1"),
        ("C:\\models\\Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("~/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("ibm-granite/granite-3.0-3b-a800m-instruct", "ibm-granite/granite-3.0-3b-a800m-instruct"),
    ],
)
def test_found(name: str, hub_id: str) -> None:
    preset = presets.find(name)
    assert preset is not None
    assert preset.hub_id == hub_id


@pytest.mark.parametrize("name", ["", "   ", "my-own-model", "org/Qwen9-1000B", "/", "x" * 5000])
def test_not_found(name: str) -> None:
    assert presets.find(name) is None


def test_a_mirror_says_that_it_is_one() -> None:
    own, mirror = presets.find("Qwen/Qwen2.5-7B"), presets.find("unsloth/Qwen2.5-7B-bnb-4bit")
    assert own is not None
    assert mirror is not None
    assert not own.match
    assert "same shape" in mirror.match


def test_nearest_name() -> None:
    assert presets.nearest("Qwen/Qwen2.5-7C") == "Qwen/Qwen2.5-7B"
    assert presets.nearest("zzzzzzzzzz") is None


def test_every_name_is_there_and_one_look_up_is_quick() -> None:
    assert len(presets.names()) >= 200
    presets.find("Qwen/Qwen2.5-7B")
    start = time.perf_counter()
    presets.find("Qwen/Qwen2.5-14B")
    assert time.perf_counter() - start < 0.02
