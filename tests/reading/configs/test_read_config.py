"""Configs as people paste them: each form read to the job that the framework would run, with the line of every fact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from advisor.reading.configs import ConfigReading, read_config


def read(text: str, name: str) -> ConfigReading:
    reading = read_config(name, text)
    assert reading is not None, f"{name} was not taken for a config"
    assert reading.problem is None, reading.problem
    return reading


def values(text: str, name: str) -> dict[str, Any]:
    return {fact.field: fact.value for fact in read(text, name).facts}


def test_trainer_and_adapter_in_python() -> None:
    text = """
    from trl import SFTConfig, SFTTrainer
    MODEL = "mistralai/Mistral-7B-v0.3"
    model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2")
    config = SFTConfig(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        max_length=1024 * 4,
        optim="paged_adamw_8bit",
        learning_rate=2e-5,
    )
    peft_config = LoraConfig(r=32, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
    """
    found = values(text, "train.py")
    assert found["framework.name"] == "trl"
    assert found["objective"] == "sft"
    assert found["model.name"] == "mistralai/Mistral-7B-v0.3"
    assert found["load.dtype"] == "bf16"
    assert found["activations.attention"] == "flash-2"
    assert (found["batch.micro_batch"], found["batch.gradient_accumulation"], found["batch.seq_len"]) == (2, 8, 4096)
    assert found["activations.reentrant"] is False
    assert (found["method.kind"], found["method.rank"], found["method.targets"]) == ("lora", 32, "qv")
    assert found["optimizer.name"] == "paged-adamw-8bit"


def test_every_fact_names_its_line() -> None:
    reading = read("TrainingArguments(\n    output_dir='x',\n    per_device_train_batch_size=3,\n    bf16=True)\n", "args.py")
    places = {fact.field: (fact.where, fact.text) for fact in reading.facts}
    assert places["batch.micro_batch"] == ("args.py:3", "per_device_train_batch_size=3,")
    assert places["precision.compute"][0] == "args.py:4"


@pytest.mark.parametrize(
    "text",
    [
        "args = TrainingArguments(per_device_train_batch_size=3, bf16=True,\n",
        "TrainingArguments(per_device_train_batch_size=3, ...)",
        "  trainer = Trainer(model, args=TrainingArguments(\n     per_device_train_batch_size=3,",
        "this line is prose, not Python\nTrainingArguments(per_device_train_batch_size=3)\n",
    ],
)
def test_unfinished_python_is_read(text: str) -> None:
    assert values(text, "args.py")["batch.micro_batch"] == 3


def test_a_comment_gives_way_to_the_code() -> None:
    text = "# per_device_train_batch_size=16, max_length=8192\nTrainingArguments(per_device_train_batch_size=2)\n"
    found = values(text, "args.py")
    assert (found["batch.micro_batch"], found["batch.seq_len"]) == (2, 8192)


def test_an_expression_is_said_not_to_be_understood() -> None:
    reading = read("TrainingArguments(per_device_train_batch_size=args.bs, bf16=True)", "args.py")
    assert "batch.micro_batch" not in {f.field for f in reading.facts}
    assert any("per_device_train_batch_size" in n.text and "no literal" in n.why for n in reading.not_understood)


def test_quantised_base_in_python() -> None:
    found = values('BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)', "bnb.py")
    assert (found["method.base"], found["method.double_quant"]) == ("nf4", True)
    assert values("BitsAndBytesConfig(load_in_4bit=True)", "bnb.py")["method.base"] == "fp4"


def test_fsdp_called_directly() -> None:
    text = "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))"
    found = values(text, "train.py")
    assert (found["parallel.strategy"], found["parallel.reshard_after_forward"], found["precision.compute"]) == ("fsdp1", False, "bf16")


def test_axolotl_yaml() -> None:
    text = """
base_model: NousResearch/Llama-3.2-1B
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_checkpointing: offload
optimizer: adamw_bnb_8bit
bf16: auto
attn_implementation: flash_attention_2
plugins:
  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin
deepspeed: deepspeed_configs/zero2.json
learning_rate: 0.0002
"""
    reading = read(text, "config.yml")
    found = {f.field: f.value for f in reading.facts}
    assert reading.framework == "axolotl"
    assert (found["method.kind"], found["method.base"], found["method.rank"], found["method.targets"]) == ("lora", "nf4", 32, "attention")
    assert (found["batch.seq_len"], found["batch.packed"], found["activations.sequence_packing"]) == (2048, True, "padding-free")
    assert (found["activations.checkpointing"], found["offload.activations"]) == ("full", "cpu")
    assert found["activations.loss"] == "fused-linear"
    strategy = next(f for f in reading.facts if f.field == "parallel.strategy")
    assert (strategy.value, strategy.kind) == ("zero2", "inferred"), "the name of a config that was not given is no reading of it"
    assert not any("learning_rate" in n.text for n in reading.not_understood)


def test_llama_factory_yaml() -> None:
    text = "model_name_or_path: Qwen/Qwen3-8B\nstage: dpo\nfinetuning_type: lora\nlora_target: all\nquantization_bit: 4\ncutoff_len: 4096\nneat_packing: true\n"
    found = values(text, "config.yaml")
    assert (found["framework.name"], found["objective"], found["method.base"]) == ("llama-factory", "dpo", "nf4")
    assert found["batch.packed"] is True


def test_accelerate_yaml_counts_all_machines() -> None:
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n  fsdp_reshard_after_forward: false\n"
    )
    found = values(text, "fsdp.yaml")
    assert (found["hardware.gpus_per_node"], found["hardware.nodes"], found["parallel.shard"]) == (8, 2, 16)
    assert (found["parallel.strategy"], found["parallel.reshard_after_forward"], found["offload.parameters"]) == ("fsdp2", False, "cpu")


def test_deepspeed_json_with_comments_and_auto() -> None:
    text = """{
  // stage 3 with states on the host
  "train_micro_batch_size_per_gpu": "auto",
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": 5e7,
  },
}"""
    reading = read(text, "ds.json")
    found = {f.field: (f.value, f.where) for f in reading.facts}
    assert reading.framework == "deepspeed"
    assert found["parallel.strategy"] == ("zero3", "ds.json:6")
    assert found["offload.optimizer"] == ("cpu", "ds.json:7")
    assert found["parallel.prefetch_elements"][0] == 50_000_000
    assert "parallel.bucket_elements" not in found
    assert "batch.micro_batch" not in found
    assert ("ds.json:8", "zero_optimization.reduce_bucket_size", "auto") in reading.seen_keys


def test_commands_with_launchers_continuations_and_variables() -> None:
    text = r"""#!/bin/bash
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64
MODEL=meta-llama/Llama-3.1-8B
torchrun --nproc_per_node=4 --nnodes 2 \
    -m openrlhf.cli.train_sft \
    --pretrain $MODEL --micro_train_batch_size 2 --max_len 2048 \
    --zero_stage 3 --bf16 --gradient_checkpointing --lora_rank 0
"""
    found = values(text, "run.sh")
    assert found["framework.name"] == "openrlhf"
    assert (found["hardware.gpus_per_node"], found["hardware.nodes"]) == (4, 2)
    assert (found["model.name"], found["batch.micro_batch"], found["batch.seq_len"]) == ("meta-llama/Llama-3.1-8B", 2, 2048)
    assert (found["parallel.strategy"], found["method.kind"], found["activations.checkpointing"]) == ("zero3", "full", "full")
    assert found["framework.allocator"] == {"expandable_segments": True, "max_split_size_mb": 64}


def test_a_flag_behind_the_script_is_not_the_launchers() -> None:
    found = values("accelerate launch --num_processes 2 train.py --num_processes=8 --per_device_train_batch_size 1\n", "cmd.sh")
    assert found["hardware.gpus_per_node"] == 2


def test_megatron_flags() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \
 --recompute-granularity selective \
 --recompute-modules core_attn mlp --micro-batch-size 1 --seq-length 8192 --bf16"
    found = values(text, "cmd.sh")
    assert found["framework.name"] == "megatron-lm"
    assert (found["parallel.strategy"], found["parallel.tensor"], found["parallel.sequence"]) == ("megatron-distributed", 2, True)
    assert (found["activations.checkpointing"], found["activations.selective"]) == ("selective", {"ops": ("core_attn", "mlp")})


def test_overrides_of_verl() -> None:
    text = "\n".join(
        (
            "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
            "actor_rollout_ref.actor.strategy=fsdp2",
            "+actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
            "data.max_prompt_length=512",
            "data.max_response_length=1536",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.actor.use_kl_loss=True",
        )
    )
    found = values(text, "overrides.txt")
    assert (found["framework.name"], found["parallel.strategy"], found["batch.seq_len"]) == ("verl", "fsdp2", 2048)
    assert (found["offload.optimizer"], found["rollout.trainer_offloaded.optimizer"]) == ("cpu", True)
    assert (found["batch.token_budget"], found["reference"]) == (16_384, "offloaded")


def test_torchtune_builder_and_recipe() -> None:
    text = (
        "# tune run --nproc_per_node 4 lora_finetune_distributed --config llama3_1/8B_lora\n"
        "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n"
        "  lora_attn_modules: [q_proj, v_proj, output_proj]\n  apply_lora_to_mlp: True\n  lora_rank: 8\n"
        "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  max_seq_len: 2048\nbatch_size: 2\ndtype: bf16\n"
        "loss:\n  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss\n"
    )
    found = values(text, "8B_lora.yaml")
    assert found["model.name"] == "meta-llama/Llama-3.1-8B"
    assert (found["method.kind"], found["method.base"], found["parallel.strategy"]) == ("lora", "nf4", "fsdp2")
    assert (found["precision.weights"], found["activations.loss"], found["batch.seq_len"]) == ("bf16", "chunked", 2048)


def test_nemo_counts_the_backend_that_is_on() -> None:
    text = (
        "policy:\n  model_name: Qwen/Qwen3-30B-A3B\n  dtensor_cfg: {enabled: false, tensor_parallel_size: 1}\n"
        "  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}\n  max_total_sequence_length: 4096\n"
        "  generation: {vllm_cfg: {max_model_len: '${policy.max_total_sequence_length}'}}\n"
    )
    found = values(text, "grpo.yaml")
    assert (found["parallel.strategy"], found["parallel.tensor"], found["parallel.pipeline"]) == ("megatron-distributed", 4, 2)
    assert found["rollout.max_length"] == 4096


def test_torchtitan_toml() -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"\n[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n'
    )
    found = values(text, "train.toml")
    assert (found["framework.name"], found["model.name"], found["batch.seq_len"]) == ("torchtitan", "meta-llama/Llama-3.1-8B", 8192)
    assert (found["activations.checkpointing"], found["activations.selective"]) == ("selective", {"every_nth_layer": 2})
    assert found["parallel.tensor"] == 2
    assert "parallel.shard" not in found


def test_notebook() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["per_device_train_batch_size=64"]},
        {"cell_type": "code", "source": ["!pip install unsloth\n", "from unsloth import FastLanguageModel\n"]},
        {"cell_type": "code", "source": ["model, t = FastLanguageModel.from_pretrained('unsloth/Qwen3-4B', max_seq_length=2048, load_in_4bit=True)\n"]},
        {"cell_type": "code", "source": ["args = SFTConfig(per_device_train_batch_size=2)\n"]},
    ]
    found = values(json.dumps({"nbformat": 4, "cells": cells}), "n.ipynb")
    assert found["framework.name"] == "unsloth"
    assert (found["batch.micro_batch"], found["batch.seq_len"], found["method.base"], found["model.name"]) == (2, 2048, "nf4", "unsloth/Qwen3-4B")


def test_model_config_and_its_quantisation() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    assert values(json.dumps(config), "config.json") == {"model.config": config}
    quantised = {**config, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}
    found = values(json.dumps(quantised), "config.json")
    assert (found["method.base"], found["method.group_size"]) == ("gptq-int4", 64)


def test_safetensors_header_says_how_it_is_stored() -> None:
    header = {"__metadata__": {"format": "pt"}, "a.weight": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]}}
    assert values(json.dumps(header), "header.json")["load.dtype"] == "bf16"
    header["a.weight.quant_state.bitsandbytes__nf4"] = {"dtype": "U8", "shape": [16], "data_offsets": [32, 48]}
    assert values(json.dumps(header), "header.json")["method.base"] == "nf4"


def test_remarks() -> None:
    found = values("# 8 x A100-SXM4-80GB, full fine-tune, meta-llama/Llama-2-7b-hf in bf16, transformers 4.45\nDPOConfig(max_length=512)\n", "args.py")
    assert (found["hardware.gpus_per_node"], found["hardware.gpu"], found["method.kind"]) == (8, "a100-80gb", "full")
    assert (found["model.name"], found["framework.versions.transformers"]) == ("meta-llama/Llama-2-7b-hf", "4.45")


def test_yaml_of_an_unknown_framework_lists_its_keys() -> None:
    reading = read("pipeline_stages: 4\nzorp_mode: fast\nmicro_batch_size: 2\n", "mystery.yaml")
    assert reading.framework is None
    assert ("mystery.yaml:2", "zorp_mode", "fast") in reading.seen_keys
    assert any("zorp_mode" in n.text for n in reading.not_understood)


@pytest.mark.parametrize(
    "text", ["", "   \n", "just a sentence about training", 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: bad\n']
)
def test_other_text_is_no_config(text: str) -> None:
    assert read_config("notes.txt", text) is None


def test_arrays_variables_and_sums_of_scripts() -> None:
    text = """
SEQ=$((512 + 1536))
MODEL_ARGS=(
   --swiglu
   --num-layers 32
)
PERF_ARGS=(
   --tensor-model-parallel-size 2   # within a node
   --use-dynamic-batch-size
   --max-tokens-per-gpu ${BUDGET:-9216}
)
ROLLOUT_ARGS+=( --n-samples-per-prompt 8 --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 )
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --colocate --hf-checkpoint /root/Qwen3-4B --seq-length $SEQ \\
   ${MODEL_ARGS[@]} "${PERF_ARGS[@]}" ${ROLLOUT_ARGS[@]} ${OTHER_ARGS[@]}
"""
    reading = read(text, "run.sh")
    found = {f.field: f.value for f in reading.facts}
    assert reading.framework == "slime"
    assert (found["batch.seq_len"], found["batch.token_budget"], found["batch.generations"]) == (2048, 9216, 8)
    assert (found["parallel.tensor"], found["rollout.tensor"], found["rollout.memory_fraction"]) == (2, 2, 0.7)
    assert found["rollout.placement"] == "colocated"
    where = next(f.where for f in reading.facts if f.field == "parallel.tensor")
    assert where == "run.sh:8"


def test_the_batch_of_all_ranks_is_no_micro_batch() -> None:
    reading = read('{"train_batch_size": 64, "zero_optimization": {"stage": 2}}', "ds.json")
    assert "batch.micro_batch" not in {f.field for f in reading.facts}
    assert {f.field: f.value for f in reading.facts}["batch.global_batch"] == 64


def test_a_plain_trainer_script_is_not_taken_for_another_framework() -> None:
    text = "python run_clm.py --model_name_or_path gpt2 --block_size 1024 --fp16 --deepspeed ds_zero2.json --per_device_train_batch_size 16"
    found = values(text, "cmd.txt")
    assert (found["framework.name"], found["batch.seq_len"], found["parallel.strategy"]) == ("hf-trainer", 1024, "zero2")


def test_nested_keys_of_a_launcher_that_no_table_knows_mean_the_usual() -> None:
    text = (
        "recipe: finetune\nmodel:\n  pretrained_model_name_or_path: google/gemma-2-9b-it\n  attn_implementation: eager\n"
        "step_scheduler:\n  local_batch_size: 8\nvalidation:\n  per_device_train_batch_size: 64\n"
    )
    reading = read_config("config.yaml", text)
    assert reading is not None
    facts = {fact.field: fact.value for fact in reading.facts}
    assert (facts["model.name"], facts["batch.micro_batch"], facts["activations.attention"]) == ("google/gemma-2-9b-it", 8, "eager")


def test_a_scripts_batch_size_is_not_deepspeeds() -> None:
    reading = read_config("cmd.sh", "accelerate launch train_dreambooth.py --train_batch_size=1 --gradient_accumulation_steps=4 --resolution=512\n")
    assert reading is not None
    assert {fact.field: fact.value for fact in reading.facts}["batch.micro_batch"] == 1


@pytest.mark.parametrize(
    ("script", "classes"),
    [
        ('AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=5)', 5),
        ('transformers.AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased")', 2),
        ('AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=len(labels))', 2),
        ('AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")', None),
    ],
)
def test_the_class_of_a_model_says_which_head_it_has(script: str, classes: int | None) -> None:
    facts = {f.field: f.value for f in read(f"model = {script}\n", "train.py").facts}
    assert facts.get("model.classes") == classes
