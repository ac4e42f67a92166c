"""Models and cards as people type them, and what only looks like one."""

import pytest

from advisor.reading.prose import model_in
from advisor.reading.spoken_cards import cards_in


@pytest.mark.parametrize(
    ("text", "hub_id"),
    [
        ("fine tune llama 3 8b with qlora", "meta-llama/Meta-Llama-3-8B"),
        ("Mistral 7B on a 3090", "mistralai/Mistral-7B-v0.1"),
        ("Qwen 2.5 VL 7B, lora", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("gpt2 xl on v100", "openai-community/gpt2-xl"),
        ("GPT-2 small", "openai-community/gpt2"),
        ("gpt2-124M", "openai-community/gpt2"),
        ("deepseek r1 distill qwen 7b grpo", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("bert base uncased", "google-bert/bert-base-uncased"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("falcon 7b vs falcon 40b", "tiiuae/falcon-7b"),
        ("llama 3 8bit", None),  # a number of bits
        ("llama 7b", None),  # of which version?
        ("configs/llama-3-8b.yaml", None),
        ("my_llama-3-8b", None),
        ("command r 35b", None),
        ("mistral-7b-openorca", None),
    ],
)
def test_a_model_in_words(text: str, hub_id: str | None) -> None:
    assert model_in(text) == hub_id


@pytest.mark.parametrize(
    ("text", "count", "card"),
    [
        ("on a 24GB 3090", None, "rtx3090-24gb"),
        ("lora on 4090, seq 2048", None, "rtx4090-24gb"),
        ("2x4090", 2, "rtx4090-24gb"),
        ("2 3090s", 2, "rtx3090-24gb"),
        ("four rtx 4090", 4, "rtx4090-24gb"),
        ("8 A100s", 8, "a100-80gb"),
        ("4x h100 80gb", 4, "h100-80gb"),
        ("a100 40gb", None, "a100-40gb"),
        ("colab t4", None, "t4-16gb"),
        ("2 GTX 1080 Ti", 2, "gtx1080ti-11gb"),
        ("after 3090 steps", None, None),
        ("trained on 3090 samples", None, None),
        ("h100.yaml", None, None),
        ("train-h100.sh", None, None),
        ("t4 of the paper", None, None),
    ],
)
def test_cards_as_they_are_typed(text: str, count: int | None, card: str | None) -> None:
    found = dict(cards_in(text))
    assert (found.get("hardware.gpus_per_node"), found.get("hardware.gpu")) == (count, card)
