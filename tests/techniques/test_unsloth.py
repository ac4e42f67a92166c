"""Unsloth's own checkpointing, which moves what it keeps to the host: its default, and offered by its own switch where it is off."""

from __future__ import annotations

import pytest

from advisor import diagnose
from advisor.job import read_job
from advisor.planner.stepping import changed_lines
from advisor.run import Run, resolve
from advisor.techniques import all_techniques

ADAPTERS = """
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B", max_seq_length=8192, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16{switch})
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, bf16=True)).train()
"""
WHOLE = """
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B", max_seq_length=8192, full_finetuning=True{switch})
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, bf16=True)).train()
"""


def read(script: str, switch: str) -> Run:
    found = diagnose([("train.py", script.format(switch=switch))]).run
    assert found is not None
    assert found.job.framework.name == "unsloth"
    return found


@pytest.mark.parametrize("script", [ADAPTERS, WHOLE], ids=["adapters", "whole"])
def test_it_is_the_default(script: str) -> None:
    job = read(script, "").job
    assert (job.activations.checkpointing, job.offload.activations) == ("full", "cpu")


@pytest.mark.parametrize(("switch", "technique"), [("True", "offload-activations"), ("False", "gradient-checkpointing")])
@pytest.mark.parametrize(
    ("script", "call"), [(ADAPTERS, "get_peft_model(..., "), (WHOLE, "from_pretrained(..., full_finetuning=True, ")], ids=["adapters", "whole"]
)
def test_it_is_offered_by_its_own_switch(script: str, call: str, switch: str, technique: str) -> None:
    before = read(script, f", use_gradient_checkpointing={switch}")
    assert before.job.offload.activations == "none"
    after = all_techniques()[technique].apply(before)
    assert isinstance(after, Run)
    assert (after.job.activations.checkpointing, after.job.offload.activations) == ("full", "cpu")
    assert changed_lines(before, after, technique) == {"unsloth": (f"FastLanguageModel.{call}use_gradient_checkpointing='unsloth')",)}


def test_adapters_in_place_of_full_training_say_so_to_the_loader() -> None:
    before = read(WHOLE, "")
    after = all_techniques()["lora"].apply(before)
    assert isinstance(after, Run)
    assert "FastLanguageModel.from_pretrained(..., full_finetuning=False)" in changed_lines(before, after, "lora")["unsloth"]


@pytest.mark.parametrize(("name", "script"), [("FastVisionModel", "FastVisionModel"), ("FastModel", "FastModel"), ("FastLanguageModel", "FastLanguageModel")])
def test_the_loader_is_the_one_of_the_script(name: str, script: str) -> None:
    before = read(ADAPTERS.replace("FastLanguageModel", script), ", use_gradient_checkpointing=False")
    after = all_techniques()["gradient-checkpointing"].apply(before)
    assert isinstance(after, Run)
    assert changed_lines(before, after, "gradient-checkpointing")["unsloth"][0].startswith(f"{name}.get_peft_model(")


@pytest.mark.parametrize(("model", "name"), [("Qwen/Qwen2.5-VL-7B-Instruct", "FastVisionModel"), ("Qwen/Qwen2.5-7B", "FastLanguageModel")])
def test_a_model_that_sees_is_loaded_with_its_tower(model: str, name: str) -> None:
    """FastLanguageModel would load it as a language model alone."""
    job = {"version": 1, "model": {"name": model}, "method": {"kind": "lora"}, "batch": {"micro_batch": 2, "seq_len": 2048},
           "framework": {"name": "unsloth"}, "activations": {"checkpointing": "none"}}  # fmt: skip
    before = resolve(read_job(job))
    after = all_techniques()["gradient-checkpointing"].apply(before)
    assert isinstance(after, Run)
    assert changed_lines(before, after, "gradient-checkpointing")["unsloth"][0].startswith(f"{name}.")
