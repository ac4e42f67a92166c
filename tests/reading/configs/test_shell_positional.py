"""Words of a command that stand for a setting by their place."""

import pytest

from advisor.reading import read


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("litgpt finetune_lora checkpoints/mistralai/Mistral-7B-v0.1 --devices 4 --precision bf16-true", "mistralai/Mistral-7B-v0.1"),
        ("litgpt finetune EleutherAI/pythia-160m --data JSON", "EleutherAI/pythia-160m"),
        ("litgpt finetune_lora --checkpoint_dir checkpoints/EleutherAI/pythia-160m", "EleutherAI/pythia-160m"),
    ],
)
def test_litgpts_first_word_is_the_checkpoint(command: str, model: str) -> None:
    assert read([("cmd.sh", command.encode())]).job.model.name == model
