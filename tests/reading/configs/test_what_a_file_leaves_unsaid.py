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


AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 64
  local_batch_size: 8
  ckpt_every_steps: 1000
dist_env:
  backend: nccl
  timeout_minutes: 1
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: "*_proj"
  dim: 8
  alpha: 32
distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 1
  cp_size: 1
  sequence_parallel: false
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
packed_sequence:
  packed_sequence_size: 4096
optimizer:
  _target_: torch.optim.Adam
  lr: 1.0e-5
"""


def test_nemo_automodel_is_read_with_its_own_defaults() -> None:
    job = runs(AUTOMODEL)
    assert (job.model.name, job.batch.micro_batch, job.batch.global_batch, job.batch.seq_len) == ("meta-llama/Llama-3.2-1B", 8, 64, 4096)
    assert (job.method.kind, job.method.rank, job.method.targets) == ("lora", 8, "all-linear")
    assert (job.parallel.strategy, job.precision.compute, job.precision.reduce, job.activations.checkpointing) == ("fsdp2", "bf16", "fp32", "none")
    whole = runs(
        AUTOMODEL[: AUTOMODEL.index("peft:")]
        + AUTOMODEL[AUTOMODEL.index("distributed:") :].replace("sequence_parallel: false", "activation_checkpointing: true")
    )
    assert (whole.method.kind, whole.activations.checkpointing) == ("full", "selective")
    assert whole.activations.selective is not None and whole.activations.selective.ops == ("self_attn", "mlp", "layernorm")  # each part in a wrapper of its own
