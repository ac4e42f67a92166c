"""Models are found by id, alias, mirror and path, and only what is the same shape is found."""

import time

import pytest

from advisor.architecture import presets, read


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
    start = time.process_time()
    presets.find("Qwen/Qwen2.5-14B")
    assert time.process_time() - start < 0.2  # 2 ms alone


@pytest.mark.parametrize(
    ("asked", "hub_id", "parameters"),
    [
        ("deepseek-ai/deepseek-llm-7b-chat", "deepseek-ai/deepseek-llm-7b-base", 6_910_365_696),
        ("mistralai/Mistral-7B-v0.2", "mistralai/Mistral-7B-Instruct-v0.2", 7_241_732_096),
        ("alpindale/Mistral-7B-v0.2-hf", "mistralai/Mistral-7B-Instruct-v0.2", 7_241_732_096),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-955k-token-2T", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384),
        ("stabilityai/stablelm-zephyr-3b", "stabilityai/stablelm-3b-4e1t", 2_795_443_200),
        ("stabilityai/stablelm-2-1_6b", "stabilityai/stablelm-2-1_6b", 1_644_515_328),
    ],
)
def test_models_that_configs_name(asked: str, hub_id: str, parameters: int) -> None:
    found = presets.find(asked)
    assert found is not None
    assert (found.hub_id, found.parameters, read(found.config).parameters) == (hub_id, parameters, parameters)


def test_a_window_belongs_to_its_version() -> None:
    windows = {name: presets.find(f"mistralai/{name}") for name in ("Mistral-7B-Instruct-v0.1", "Mistral-7B-Instruct-v0.2")}
    assert [preset.config["sliding_window"] for preset in windows.values() if preset is not None] == [4096, None]


@pytest.mark.parametrize(
    ("asked", "hub_id"),
    [
        ("huggyllama/llama-65b", "huggyllama/llama-65b"),
        ("decapoda-research/llama-7b-hf", "huggyllama/llama-7b"),
        ("lmsys/vicuna-33b-v1.3", "huggyllama/llama-30b"),
        ("lmsys/vicuna-7b-v1.5", "meta-llama/Llama-2-7b-hf"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistralai/Mistral-7B-v0.1"),
        ("Qwen/Qwen-7B-Chat", "Qwen/Qwen-7B"),
        ("Qwen/QwQ-32B", "Qwen/Qwen2.5-32B"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("bigscience/bloomz-7b1", "bigscience/bloom-7b1"),
        ("unsloth/Qwen3-VL-8B-Instruct-unsloth-bnb-4bit", "Qwen/Qwen3-VL-8B-Instruct"),
        ("openai/whisper-small", "openai/whisper-small"),
        ("facebook/bart-large-cnn", "facebook/bart-large-cnn"),
        ("bert-base-cased", "google-bert/bert-base-cased"),
    ],
)
def test_names_that_people_train(asked: str, hub_id: str) -> None:
    preset = presets.find(asked)
    assert preset is not None
    assert preset.hub_id == hub_id


def test_a_text_config_that_leaves_keys_out_has_its_own_class_for_defaults() -> None:
    """A SmolVLM's text config writes no head_dim: 576 / 9 heads is 64, and not the 128 of the text model that Idefics3 takes where none is written."""
    preset = presets.find("HuggingFaceTB/SmolVLM-256M-Instruct")
    assert preset is not None
    assert read(preset.config).blocks[0].head_dim == 64
