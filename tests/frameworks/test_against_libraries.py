"""The tables against the libraries that are installed: keys that are written exist, defaults are what the classes say."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from advisor.frameworks.defaults import rules
from advisor.frameworks.table import table

pytestmark = pytest.mark.torch


def written_keys(name: str, scope: str) -> set[str]:
    entries = [e for e in table(name).entries if not e.read_only and scope in (e.scopes or table(name).scopes)]
    return {key.split(".")[0] for e in entries for key in ((e.key,) if e.key else e.keys)}


def test_training_arguments_have_the_keys_and_defaults() -> None:
    from transformers import TrainingArguments

    fields = {f.name: f.default for f in dataclasses.fields(TrainingArguments)}
    extra = {"model_name_or_path"}  # of the scripts around it
    assert written_keys("hf-trainer", "TrainingArguments") - fields.keys() <= extra
    assert fields["per_device_train_batch_size"] == 8
    assert fields["gradient_accumulation_steps"] == 1
    assert fields["use_liger_kernel"] is False


def test_every_optimizer_of_transformers_is_known_or_said_not_to_be() -> None:
    from transformers.training_args import OptimizerNames

    entry = next(e for e in table("hf-trainer").entries if e.key == "optim")
    assert entry.values is not None
    unknown = {o.value for o in OptimizerNames} - set(entry.values)
    without_field = {"adamw_torch_xla", "adamw_torch_npu_fused", "adagrad", "rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "grokadamw"}
    without_field |= {"schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd", "stable_adamw", "galore_adafactor", "galore_adafactor_layerwise"}
    without_field |= {"ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"}
    assert unknown <= without_field


def test_lora_config_has_the_keys_and_defaults() -> None:
    from peft import LoraConfig

    fields: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(LoraConfig)}
    assert written_keys("peft", "LoraConfig") <= fields.keys()
    defaults = {field: found[0].value for field, found in rules("hf-trainer").items() if field.startswith("method.")}
    assert defaults["method.rank"] == fields["r"]
    assert defaults["method.dropout"] == fields["lora_dropout"]


def test_bitsandbytes_config_has_the_keys() -> None:
    import inspect

    from transformers import BitsAndBytesConfig

    assert written_keys("bitsandbytes", "BitsAndBytesConfig") <= set(inspect.signature(BitsAndBytesConfig.__init__).parameters)


def test_fsdp_plugin_has_the_keys_and_defaults() -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    fields = {f.name for f in dataclasses.fields(FullyShardedDataParallelPlugin)}
    for entry in table("accelerate").entries:
        for key in entry.all_keys:
            if key.startswith("fsdp_config.") and not entry.read_only:
                name = key.removeprefix("fsdp_config.fsdp_")
                assert {name, f"fsdp_{name}"} & fields or name in {"offload_params"}, key
