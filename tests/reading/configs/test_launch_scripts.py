"""Launch scripts of the frameworks that have no config file: what each would run, by its own arguments and defaults."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.reading import read
from advisor.reading.configs import ConfigReading, read_config
from advisor.run import resolve


def reading(text: str, name: str = "run.sh") -> ConfigReading:
    found = read_config(name, text)
    assert found is not None
    return found


def facts(text: str, name: str = "run.sh") -> dict[str, Any]:
    return {fact.field: fact.value for fact in reading(text, name).facts}


SLIME = """
MODEL_ARGS=(--swiglu --num-layers 36)
PERF=(--tensor-model-parallel-size 2 --sequence-parallel --use-dynamic-batch-size --max-tokens-per-gpu 9216)
ray job submit --address x -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 {extra} \\
  --hf-checkpoint /m/Qwen3-4B --rollout-max-response-len 8192 ${{MODEL_ARGS[@]}} ${{PERF[@]}}
"""


def test_slime_colocated() -> None:
    found = facts(SLIME.format(extra="--colocate --advantage-estimator grpo --use-kl-loss"))
    assert reading(SLIME.format(extra="--colocate")).framework == "slime"
    assert (found["parallel.strategy"], found["precision.compute"], found["objective"]) == ("megatron-distributed", "bf16", "grpo")
    assert (found["rollout.placement"], found["rollout.sleep"], found["reference"]) == ("colocated", "level-2", "offloaded")
    assert (found["batch.token_budget"], found["batch.seq_len"], found["framework.name"]) == (9216, 8192, "megatron-lm")


def test_slime_apart_without_a_kl_term_and_supervised() -> None:
    apart = facts(SLIME.format(extra="--kl-coef 0.0"))
    assert (apart["rollout.placement"], apart["reference"]) == ("separate", "none")
    assert facts(SLIME.format(extra="--loss-type sft_loss"))["objective"] == "sft"
    assert "rollout.placement" not in facts(SLIME.format(extra="--loss-type sft_loss"))


def test_slime_on_fsdp_is_not_megatron() -> None:
    found = facts(SLIME.format(extra="--train-backend fsdp --advantage-estimator grpo"))
    assert (found["framework.name"], found["parallel.strategy"]) == ("custom", "fsdp2")


def test_verl_takes_its_strategy_from_the_name_of_its_config() -> None:
    text = "python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' algorithm.adv_estimator=grpo \\\n" + (
        "  actor_rollout_ref.model.path=Qwen/Qwen2-7B actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\\n"
        "  +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full"
    )
    found = facts(text)
    assert (found["parallel.strategy"], found["parallel.tensor"], found["activations.checkpointing"]) == ("megatron-distributed", 2, "full")
    plain = facts("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=x/y-7b")
    assert "parallel.strategy" not in plain


def test_verl_lists_what_a_critic_or_a_reference_is_told() -> None:
    text = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae critic.model.fsdp_config.param_offload=True actor_rollout_ref.ref.strategy=fsdp2"
    listed = {item.text.partition(" = ")[0] for item in reading(text).not_understood}
    assert {"critic.model.fsdp_config.param_offload", "actor_rollout_ref.ref.strategy"} <= listed


OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path a/b-8B --actor.num_gpus_per_node 8 --vllm.num_engines 4 --ds.zero_stage 3 {}"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--train.colocate_all --reward.model_name_or_path r/m", {"reference": "copy", "critic": "copy", "reward": "copy", "rollout.placement": "colocated"}),
        ("--reward.model_name_or_path r/m", {"reference": "separate", "critic": "separate", "reward": "separate", "rollout.placement": "separate"}),
        (
            "--train.colocate_all --algo.kl.init_coef 0 --algo.advantage.estimator reinforce_baseline --reward.remote_url x.py",
            {"reference": "none", "critic": "none"},
        ),
        ("--train.colocate_all --train.dynamic_batch_enable", {"batch.token_budget": 16_192}),
        ("--train.colocate_all --train.async_enable", {"rollout.placement": "separate"}),
    ],
)
def test_openrlhf_holds_its_models(flags: str, expected: dict[str, Any]) -> None:
    found = facts(OPENRLHF.format(flags))
    assert {field: found.get(field) for field in expected} == expected


def test_openrlhf_module_in_a_document() -> None:
    text = "read -r -d '' cmd <<EOF\nopenrlhf.cli.train_sft \\\n  --data.max_len 4096 \\\n  --model.model_name_or_path a/b-8B\nEOF\ndeepspeed --module $cmd\n"
    found = facts(text)
    assert (found["framework.name"], found["objective"], found["batch.seq_len"]) == ("openrlhf", "sft", 4096)


def test_megatron_swift_is_ms_swift_with_megatrons_defaults() -> None:
    found = facts(
        "NPROC_PER_NODE=8 \\\nmegatron sft --model Qwen/Qwen3-8B --micro_batch_size 2 --tensor_model_parallel_size 4 --max_length 8192 --packing true"
    )
    assert (found["framework.name"], found["parallel.strategy"], found["activations.checkpointing"]) == ("ms-swift", "megatron-distributed", "selective")
    assert (found["batch.micro_batch"], found["parallel.tensor"], found["method.kind"], found["hardware.gpus_per_node"]) == (2, 4, "full", 8)
    none = facts("megatron pt --model Qwen/Qwen3-8B --recompute_granularity none")
    assert (none["activations.checkpointing"], none["objective"]) == ("none", "pretrain")


def test_swift_bounds_prompt_and_completion() -> None:
    found = facts("swift rlhf --rlhf_type grpo --model a/b-7B --max_length 2048 --max_completion_length 1024 --use_vllm true --vllm_mode colocate")
    assert found["batch.seq_len"] == 3072


def test_json_on_a_command_line_is_read() -> None:
    found = facts("swift sft --model a/b-7B --gradient_checkpointing true --gradient_checkpointing_kwargs '{\"use_reentrant\": true}'")
    assert found["activations.reentrant"] is True


def test_both_halves_are_a_contradiction() -> None:
    found = reading("torchrun train.py --per_device_train_batch_size 2 --num_train_epochs 1 --bf16 True --fp16 True")
    assert [(c.field, c.kept.value, c.other.value) for c in found.conflicts] == [("precision.compute", "bf16", "fp16")]


def test_a_negative_batch_is_named() -> None:
    listed = reading("TrainingArguments(per_device_train_batch_size=-4, num_train_epochs=1)", "t.py").not_understood
    assert any("per_device_train_batch_size = -4" in item.text and "at least 1" in item.why for item in listed)


def test_what_a_file_says_wins_over_the_file_it_builds_on() -> None:
    base = "policy:\n  model_name: a/b-7B\n  train_micro_batch_size: 4\n  max_total_sequence_length: 512\ncluster:\n  gpus_per_node: 8\n"
    child = "defaults: ../../base.yaml\npolicy:\n  train_micro_batch_size: 1\ngrpo:\n  num_prompts_per_step: 8\n"
    for order in ([("base.yaml", base), ("child.yaml", child)], [("child.yaml", child), ("base.yaml", base)]):
        found = read(order)
        assert (found.job.batch.micro_batch, found.job.batch.seq_len) == (1, 512)
        assert not any(item.text.startswith("defaults") for item in found.evidence.not_understood)
    alone = read([("child.yaml", child)])
    assert any(item.text.startswith("defaults") for item in alone.evidence.not_understood)


def test_an_interpolation_beside_the_key() -> None:
    text = (
        "policy:\n  model_name: a/b-7B\n  max_total_sequence_length: 2048\n  generation:\n    vllm_cfg:\n      max_model_len: ${...max_total_sequence_length}\n"
    )
    assert facts(text, "c.yaml")["rollout.max_length"] == 2048


def test_a_command_line_overrules_the_number_of_processes_and_what_follows_from_it() -> None:
    config = "distributed_type: FSDP\nnum_processes: 2\nnum_machines: 1\nfsdp_config:\n  fsdp_version: 2\n"
    command = "accelerate launch --config_file fsdp.yaml --num_processes 8 train.py --per_device_train_batch_size 2 --num_train_epochs 1"
    job = read([("fsdp.yaml", config), ("run.sh", command)]).job
    assert (job.hardware.gpus_per_node, job.parallel.shard) == (8, None)
    assert read([("fsdp.yaml", config)]).job.parallel.shard == 2


def test_unsloth_loads_in_four_bit_unless_told() -> None:
    text = 'from unsloth import FastLanguageModel\nm, t = FastLanguageModel.from_pretrained("a/b-7B"{})\nm = FastLanguageModel.get_peft_model(m, r=16)\n'
    assert resolve(read([("t.py", text.format(""))]).job).job.method.base == "nf4"
    assert resolve(read([("t.py", text.format(", load_in_16bit=True"))]).job).job.method.base == "none"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "deepspeed-chat",
            "deepspeed main.py --actor_model_name_or_path facebook/opt-1.3b --critic_model_name_or_path facebook/opt-350m \\\n"
            "  --actor_zero_stage 3 --actor_lora_dim 8",
            {"framework.name": "deepspeed", "parallel.strategy": "zero3", "method.rank": 8, "objective": "ppo", "critic": "copy"},
        ),
        (
            "fairseq",
            "fairseq-train data-bin --arch transformer --max-tokens 4096 --update-freq 8 --fp16 --ddp-backend fully_sharded",
            {
                "framework.name": "custom",
                "batch.token_budget": 4096,
                "batch.gradient_accumulation": 8,
                "parallel.strategy": "fsdp1",
                "precision.master": "fp32",
            },
        ),
        (
            "skyrl",
            "uv run -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-7B trainer.placement.policy_num_gpus_per_node=8",
            {"framework.name": "custom", "hardware.gpus_per_node": 8, "parallel.strategy": "fsdp2", "rollout.placement": "colocated", "batch.seq_len": 1536},
        ),
        ("openmmlab", "bash tools/dist_train.sh configs/x.py 8 --amp", {"framework.name": "custom", "parallel.strategy": "ddp", "precision.compute": "fp16"}),
    ],
)
def test_other_frameworks_are_named(name: str, text: str, expected: dict[str, Any]) -> None:
    assert reading(text).framework == name
    found = facts(text)
    assert {field: found.get(field) for field in expected} == expected


def test_trlx_is_named() -> None:
    text = "train: {seq_length: 1024, batch_size: 8, pipeline: P}\nmodel: {model_path: gpt2-xl, num_layers_unfrozen: 2}\nmethod: {ppo_epochs: 4}\n"
    found = reading(text, "ppo.yaml")
    assert found.framework == "trlx"
    assert {f.field: f.value for f in found.facts}["batch.seq_len"] == 1024
    assert any("num_layers_unfrozen" in item.text for item in found.not_understood)


@pytest.mark.parametrize(("added", "strategy"), [(" --deepspeed_config_file ds.json", None), ("", "zero2"), (" --zero_stage 3", "zero3")])
def test_accelerates_stage_is_the_named_files(added: str, strategy: str | None) -> None:
    command = f"accelerate launch --num_processes 8 --use_deepspeed{added} sft.py --per_device_train_batch_size 2 --num_train_epochs 1\n"
    assert read([("cmd.sh", command)]).job.parallel.strategy == strategy
