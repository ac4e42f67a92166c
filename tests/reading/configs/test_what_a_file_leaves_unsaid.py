"""Files that do not name what they train: what their keys imply is taken, by what the frameworks do with them."""

from __future__ import annotations

import pytest

from advisor.job import Job
from advisor.reading import read
from advisor.run import resolve

TRL = "model_name_or_path: a/b-7B\nbf16: true\nper_device_train_batch_size: 1\nnum_train_epochs: 1\nmax_length: 2048\n{}"
FACTORY = "model: Qwen/Qwen3-0.6B\nmodel_class: llm\ntrain_dataset: d.yaml\nmicro_batch_size: 1\ncutoff_len: 2048\ndist_config:\n  name: {}\n{}"


def runs(text: str) -> Job:
    found = read([("config.yaml", text)])
    return resolve(found.job, found.evidence).job


@pytest.mark.parametrize(
    ("more", "objective", "reference"),
    [
        ("beta: 0.1\nmax_prompt_length: 512\noutput_dir: data/zephyr-7b-dpo-full\n", "dpo", "copy"),
        ("beta: 0.1\nmax_prompt_length: 512\nhub_model_id: me/zephyr-orpo-141b\n", "orpo", "none"),
        ("beta: 0.1\nmax_prompt_length: 512\noutput_dir: out\n", "dpo", "copy"),
        ("beta: 0.04\nmax_prompt_length: 512\nnum_generations: 8\noutput_dir: out-dpo\n", "sft", "none"),
        ("output_dir: data/zephyr-7b-sft-after-dpo\n", "sft", "none"),
    ],
)
def test_beta_beside_prompt_lengths_is_preference_training(more: str, objective: str, reference: str) -> None:
    job = runs(TRL.format(more))
    assert (job.objective, job.reference) == (objective, reference)


@pytest.mark.parametrize(
    ("engine", "more", "kind", "weights"),
    [
        ("fsdp2", "", "full", "fp32"),
        ("deepspeed\n  config_file: ds_z3.json", "", "full", "bf16"),
        ("fsdp2", "peft_config:\n  name: lora\n  r: 16\n", "lora", "bf16"),
    ],
)
def test_llama_factory_without_a_peft_config_trains_everything(engine: str, more: str, kind: str, weights: str) -> None:
    job = runs(FACTORY.format(engine, more))
    assert (job.framework.name, job.method.kind, job.precision.weights) == ("llama-factory", kind, weights)


def test_llama_factorys_context_groups_and_batching() -> None:
    job = runs(FACTORY.format("fsdp2", "cp_mode: ulysses\ncp_size: 2\nbatching_strategy: padding_free\n"))
    assert (job.parallel.context, job.parallel.context_kind, job.activations.sequence_packing) == (2, "ulysses", "padding-free")
