"""Settings that a framework refuses together, or keeps against what one would expect, read from its files and scripts."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.reading.configs import read_config
from advisor.resolving.contradictions import contradictions
from advisor.run import resolve

AXOLOTL = "base_model: a/b-7B\nsequence_len: 4096\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\n"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.yaml", f"{AXOLOTL}deepspeed: deepspeed_configs/zero3_bf16.json\nfsdp_config:\n  reshard_after_forward: true\nfsdp_version: 2\n", True),
        ("a.yaml", f"{AXOLOTL}deepspeed: deepspeed_configs/zero1.json\nfsdp:\n  - full_shard\n  - auto_wrap\n", True),
        ("a.yaml", f"{AXOLOTL}deepspeed:\nfsdp:\n  - full_shard\n", False),
        ("a.yaml", f"{AXOLOTL}deepspeed: deepspeed_configs/zero1.json\nfsdp:\nfsdp_config:\n", False),
        ("t.py", "TrainingArguments('o', per_device_train_batch_size=1, num_train_epochs=1, deepspeed='ds_z2.json', fsdp='full_shard auto_wrap')", True),
        ("t.py", "TrainingArguments('o', per_device_train_batch_size=1, num_train_epochs=1, deepspeed='ds_z2.json', fsdp='')", False),
    ],
)
def test_deepspeed_beside_fsdp_cannot_run(name: str, text: str, found: bool) -> None:
    config = read_config(name, text)
    assert config is not None
    listed = [item for item in config.not_understood if "cannot run" in item.why]
    assert [item.where.rpartition(":")[0] for item in listed] == ([name] if found else [])


def test_torchtune_steps_in_the_backward_pass_or_accumulates() -> None:
    text = (
        "output_dir: o\nmodel:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n"
        "  max_seq_len: 2048\nbatch_size: 2\nepochs: 1\noptimizer:\n  _component_: bitsandbytes.optim.PagedAdamW8bit\n"
        "optimizer_in_bwd: {}\ngradient_accumulation_steps: {}\n"
    )
    for in_backward, steps, raised in ((True, 8, True), (True, 1, False), (False, 8, False)):
        found = read([("full.yaml", text.format(in_backward, steps))])
        assert any("torchtune stops" in sentence for sentence in contradictions(resolve(found.job, found.evidence))) is raised


DPO = """
from trl import DPOConfig, DPOTrainer
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)
ref = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16)
args = DPOConfig(output_dir="o", per_device_train_batch_size=1, max_length=1024, bf16=True)
trainer = DPOTrainer({}, args=args, train_dataset=ds, peft_config=LoraConfig(r=16, target_modules="all-linear"))
"""


@pytest.mark.parametrize(
    ("arguments", "held"),
    [
        ("model=model, ref_model=ref", "copy"),
        ("model, ref", "copy"),
        ("model, None", "adapter-off"),
        ("model=model, ref_model=None", "adapter-off"),
        ("model=model, ref_model=None if lora else ref", "adapter-off"),
        ("model=model", "adapter-off"),
    ],
)
def test_a_reference_that_is_passed_is_kept_beside_adapters(arguments: str, held: str) -> None:
    found = read([("dpo.py", DPO.format(arguments))])
    assert resolve(found.job, found.evidence).job.reference == held
    assert not any("no table knows" in item.why for item in found.evidence.not_understood)


def test_older_trl_refuses_a_reference_beside_adapters() -> None:
    found = read([("dpo.py", DPO.format("model=model, ref_model=ref"))])
    for version, refused in (("0.24.0", True), ("0.28.0", False), ("1.16.0", False)):
        job = found.job.but(framework={"name": "trl", "versions": {"trl": version}})
        assert any("ValueError" in sentence for sentence in contradictions(resolve(job, found.evidence))) is refused


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=a/b-7B "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.name=vllm {}"
)


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("run.sh", VERL.format("actor_rollout_ref.rollout.gpu_memory_utilization=1.7"), "gpu_memory_utilization = 1.7"),
        ("run.sh", VERL.format("actor_rollout_ref.rollout.gpu_memory_utilization=0"), "gpu_memory_utilization = 0"),
        ("run.sh", VERL.format("actor_rollout_ref.rollout.tensor_model_parallel_size=0"), "tensor_model_parallel_size = 0"),
        ("run.sh", VERL.format("actor_rollout_ref.rollout.n=0"), "rollout.n = 0"),
        ("t.py", "GRPOConfig(per_device_train_batch_size=1, vllm_gpu_memory_utilization=30)", "vllm_gpu_memory_utilization = 30"),
        ("t.py", "TrainingArguments('o', per_device_train_batch_size=0, num_train_epochs=1)", "per_device_train_batch_size = 0"),
        ("m.sh", "torchrun pretrain_gpt.py --pipeline-model-parallel-size 0 --micro-batch-size 1 --num-layers 32", "pipeline-model-parallel-size = 0"),
        ("t.toml", "[parallelism]\ntensor_parallel_degree = 0\ndata_parallel_shard_degree = -1\n", "tensor_parallel_degree = 0"),
    ],
)
def test_sizes_that_cannot_be_are_named(name: str, text: str, key: str) -> None:
    config = read_config(name, text)
    assert config is not None
    assert [item.text.endswith(key) for item in config.not_understood if "cannot run" in item.why] == [True]
    assert any(key in note for note in diagnose([(name, text)]).notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.json", '{"tensor_parallel": {"autotp_size": 0}, "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto"}'),
        ("t.toml", "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 1\n"),
        ("run.sh", VERL.format("actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.model.lora_rank=0")),
    ],
)
def test_zero_and_minus_one_that_mean_something_are_no_fault(name: str, text: str) -> None:
    config = read_config(name, text)
    assert config is not None
    assert not any("cannot run" in item.why for item in config.not_understood)
