"""Our arithmetic of parameters equals the models as built, for every known model."""

import json

import pytest

from advisor import knowledge
from advisor.architecture import of_model, presets, read
from advisor.job import Model

STEMS = sorted(set(presets.index().values()))


@pytest.mark.parametrize("stem", STEMS)
def test_parameters_equal_the_built_model(stem: str) -> None:
    model = json.loads(knowledge.path("models", f"{stem}.json").read_text())
    architecture = read(model["config"])
    counted = model["parameters"]
    # transformers 5 ties T5 heads whatever the config says; the published weights, and transformers 4, keep them apart
    assert architecture.parameters == counted.get("total_untied", counted["total"])
    assert architecture.embedding_parameters >= (counted["embedding"] or 0)
    if "total_untied" not in counted:
        assert architecture.head_parameters == counted["lm_head_untied"] or architecture.model_type in ("gptj", "phi", "phimoe", "codegen")
    if counted["experts"]:
        assert architecture.expert_parameters == counted["experts"]


def test_every_known_model_is_read_without_a_guess() -> None:
    for name in presets.names():
        architecture = of_model(Model(name=name))
        assert architecture is not None
        assert not [note for note in architecture.unread if "no reader" in note], name


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("deepseek-ai/DeepSeek-V3", [3, 58]),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", [36, 12]),
        ("ai21labs/Jamba-v0.1", [16, 12, 4]),
        ("google/gemma-3-27b-it", [52, 10]),
        ("openai/gpt-oss-20b", [12, 12]),
    ],
)
def test_layers_that_differ_are_blocks_of_their_own(name: str, kinds: list[int]) -> None:
    architecture = of_model(Model(name=name))
    assert architecture is not None
    assert sorted(b.count for b in architecture.blocks) == sorted(kinds)


def test_a_tied_head_is_counted_once() -> None:
    tied = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128}
    apart = read({**tied, "tie_word_embeddings": False}).parameters
    assert apart - read({**tied, "tie_word_embeddings": True}).parameters == 128 * 64
