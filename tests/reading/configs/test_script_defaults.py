"""What a script or a config leaves to a default of its own: positional arguments, documents that it writes, recipes whose batch counts prompts."""

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


CHAT = (
    "deepspeed main.py --actor_model_name_or_path a/b-7B --critic_model_name_or_path a/c --actor_zero_stage $STAGE "
    "--per_device_training_batch_size 1 --max_prompt_seq_len 256 --max_answer_seq_len 256 --actor_gradient_checkpointing"
)


@pytest.mark.parametrize("test", ['[ "$STAGE" == "" ]', '[[ $STAGE = "" ]]', '[ -z "$STAGE" ]'])
def test_a_missing_argument_takes_the_default_of_the_script(test: str) -> None:
    assert facts(f"STAGE=$1\nif {test}; then\n  STAGE=3\nfi\n{CHAT}")["parallel.strategy"] == "zero3"


def test_an_unknown_setting_is_not_given_the_frameworks_default() -> None:
    found = reading(f"STAGE=$1\n{CHAT}")
    assert found.framework == "deepspeed-chat"
    assert "parallel.strategy" not in {fact.field for fact in found.facts}
    assert any(item.text.startswith("actor_zero_stage = $1") for item in found.not_understood)


def test_a_document_is_filled_as_the_shell_fills_it() -> None:
    text = (
        "S=3\nMODE=$1\ncat > ds.json << EOF\n{\n"
        '  "train_micro_batch_size_per_gpu": $UNKNOWN,\n  "gradient_accumulation_steps": ${A:-1},\n  "zero_optimization": {"stage": $S}\n}\nEOF\n'
        "deepspeed --num_gpus 2 train.py --deepspeed_config ds.json\n"
    ).replace("${A:-1}", "4")
    found = facts(text)
    assert (found["parallel.strategy"], found["batch.gradient_accumulation"]) == ("zero3", 4)
    assert "batch.micro_batch" not in found


def test_a_remark_about_a_flag_is_no_setting() -> None:
    text = (
        "X=(\n  --seq-length 4096 # --vocab-size might be inferred\n)\ntorchrun pretrain_gpt.py ${X[@]} --micro-batch-size 1 --num-layers 2 --vocab-size 128\n"
    )
    assert not any("vocab-size" in item.text for item in reading(text).not_understood)


def test_what_two_branches_say_is_listed_once() -> None:
    text = 'CMD="pretrain_gpt.py --micro-batch-size 1 --tensor-model-parallel-size 2 --patch-dim 14"\npython $CMD\npython $CMD\n'
    listed = [item for item in reading(text).not_understood if item.text.startswith("patch-dim")]
    assert len(listed) == 1


@pytest.mark.parametrize(("method", "layers", "listed"), [("uniform", "1", False), ("uniform", "4", True), ("block", "10", True)])
def test_recomputation_of_each_layer_is_full_recomputation(method: str, layers: str, listed: bool) -> None:
    text = f"python pretrain_gpt.py --micro-batch-size 1 --recompute-granularity full --recompute-method {method} --recompute-num-layers {layers}"
    found = reading(text)
    assert {f.field: f.value for f in found.facts}["activations.checkpointing"] == "full"
    assert any("recompute-method" in item.text for item in found.not_understood) is listed


VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=a/b-7B"


def test_the_older_supervised_trainer_of_verl_pads_and_the_newer_fills_a_budget() -> None:
    older = facts("torchrun -m verl.trainer.fsdp_sft_trainer data.micro_batch_size=4 model.partial_pretrain=a/b-7B")
    assert (older["parallel.strategy"], older["activations.sequence_packing"], older["objective"]) == ("fsdp2", "padded", "sft")
    assert "batch.token_budget" not in older
    newer = facts("torchrun -m verl.trainer.sft_trainer engine=fsdp model.path=a/b-7B")
    assert newer["batch.token_budget"] == 8192
    assert "batch.token_budget" not in facts("torchrun -m verl.trainer.sft_trainer data.use_dynamic_bsz=False model.path=a/b-7B")
    told = facts("torchrun -m verl.trainer.fsdp_sft_trainer model.strategy=fsdp use_remove_padding=true model.partial_pretrain=a/b-7B")
    assert (told["parallel.strategy"], told["activations.sequence_packing"]) == ("fsdp1", "padding-free")


@pytest.mark.parametrize(("version", "packing"), [("0.6.1", "padded"), ("0.7.0", "padding-free")])
def test_padding_in_verl_by_version(version: str, packing: str) -> None:
    found = read([("run.sh", f"{VERL}\n"), ("pip.txt", f"verl=={version}\n")])
    run = resolve(found.job.but(framework={"versions": {"verl": version}}), found.evidence)
    assert run.facts["activations.sequence_packing"].value == packing


def test_sequence_ranks_of_verl_exchange_heads() -> None:
    found = read([("run.sh", f"{VERL} actor_rollout_ref.actor.ulysses_sequence_parallel_size=2\n")])
    assert resolve(found.job, found.evidence).facts["parallel.context_kind"].value == "ulysses"


TUNE = "model:\n  _component_: torchtune.models.llama3_2.llama3_2_3b\ntokenizer:\n  _component_: t\n  max_seq_len: 512\ncheckpointer:\n  _component_: c\n"


def test_torchtunes_ppo_counts_prompts_in_its_batch() -> None:
    text = (
        TUNE
        + "batch_size: 64\nppo_batch_size: 32\ngradient_accumulation_steps: 4\nmax_generated_tokens: 58\nloss:\n  _component_: torchtune.rlhf.loss.PPOLoss\n"
    )
    found = facts(text, "ppo.yaml")
    assert (found["batch.micro_batch"], found["batch.seq_len"], found["objective"]) == (8, 570, "ppo")
    assert (found["reference"], found["critic"], found["reward"]) == ("copy", "copy", "copy")


def test_torchtunes_grpo_takes_every_sample_at_once() -> None:
    text = TUNE + "batch_size: 1\ngrpo_samples: 16\nmax_generated_tokens: 512\nloss:\n  _component_: torchtune.dev.grpo.loss.GRPOSimpleLoss\n"
    found = facts(text, "grpo.yaml")
    assert (found["batch.micro_batch"], found["batch.generations"], found["objective"]) == (16, 16, "grpo")


def test_torchtunes_group_of_training_settings() -> None:
    text = TUNE + "orchestration:\n  num_training_workers: 2\ntraining:\n  batch_size: 16\n  enable_activation_offloading: true\n"
    found = facts(text, "async.yaml")
    assert (found["batch.micro_batch"], found["offload.activations"], found["hardware.gpus_per_node"]) == (16, "cpu", 2)


REGISTRY = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer

def small() -> Trainer.Config:
    return Trainer.Config(
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4 * 2048, max_context_length=2048),
        activation_checkpoint=SelectiveAC.Config(),
    )

def large() -> Trainer.Config:
    # the head stays in fp32
    return Trainer.Config(parallelism=ParallelismConfig(tensor_parallel_degree=8), activation_checkpoint=FullAC.Config())
"""


def test_of_a_registry_of_configurations_one_is_counted() -> None:
    found = reading(REGISTRY, "config_registry.py")
    taken = {fact.field: fact.value for fact in found.facts}
    assert found.framework == "torchtitan"
    assert (taken["batch.micro_batch"], taken["batch.seq_len"], taken["activations.checkpointing"]) == (4, 2048, "selective")
    assert "parallel.tensor" not in taken and "precision.weights" not in taken
    assert any("large()" in item.text for item in found.not_understood)


def test_a_setting_that_cannot_be_parsed_is_listed() -> None:
    found = reading("args = TrainingArguments(per_device_train_batch_size=3)\nlora_r = 16 = 8\n", "t.py")
    assert any(item.text.startswith("lora_r = 16") for item in found.not_understood)


NEOX = """{
  "pipe_parallel_size": 2, "model_parallel_size": 2, "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096,
  "intermediate_size": 32768, "activation": "swiglu", "mlp_multiple_of": 256, "no_weight_tying": true, "attention_config": [[["flash"], 32]],
  "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, "checkpoint_activations": true, "bf16": {"enabled": true},
  "steps_per_print": 10, "wall_clock_breakdown": true
}"""


def test_gpt_neox_is_no_plain_deepspeed() -> None:
    found = facts(NEOX, "7B.yml")
    assert reading(NEOX, "7B.yml").framework == "gpt-neox"
    assert (found["parallel.strategy"], found["parallel.tensor"], found["parallel.pipeline"], found["batch.micro_batch"]) == ("zero1", 2, 2, 4)
    assert (found["activations.checkpointing"], found["activations.attention"], found["objective"]) == ("full", "flash-2", "pretrain")
    shape = found["model.config"]
    assert (shape["intermediate_size"], shape["vocab_size"], shape["tie_word_embeddings"]) == (11_008, 50_432, False)  # 32768 x 2/3 / 2 in 256s; 50257 in 256s


def test_gpt_neox_without_a_vocabulary_has_no_shape() -> None:
    text = NEOX.replace('"seq_length"', '"tokenizer_type": "HFTokenizer", "seq_length"')
    assert "model.config" not in facts(text, "7B.yml")
    assert any("vocabulary" in item.why for item in reading(text, "7B.yml").not_understood)


OLMO = """
model: {d_model: 4096, n_heads: 32, n_layers: 32, mlp_hidden_size: 22016, weight_tying: false, block_type: sequential, layer_norm_type: rms,
  norm_after: true, activation_type: swiglu, max_sequence_length: 4096, vocab_size: 100278, embedding_size: 100352, flash_attention: true, include_bias: false}
global_train_batch_size: 1024
device_train_microbatch_size: 2
max_duration: 1ep
precision: amp_bf16
fsdp: {wrapping_strategy: by_block_and_size, precision: mixed}
"""


def test_olmo_is_not_llm_foundry() -> None:
    found = facts(OLMO, "olmo.yaml")
    assert reading(OLMO, "olmo.yaml").framework == "olmo"
    assert (found["batch.micro_batch"], found["batch.seq_len"], found["parallel.strategy"]) == (2, 4096, "fsdp1")
    assert (found["precision.weights"], found["precision.reduce"], found["activations.checkpointing"]) == ("fp32", "fp32", "none")
    assert (found["model.config"]["intermediate_size"], found["model.config"]["vocab_size"]) == (11_008, 100_352)


def test_a_value_that_is_not_known_is_not_the_default() -> None:
    assert facts(OLMO + "activation_checkpointing: one_in_four\n", "o.yaml")["activations.selective"] == {"every_nth_layer": 4}
    assert "activations.checkpointing" not in facts(OLMO + "activation_checkpointing: fine_grained\n", "o.yaml")


NANOTRON = """
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 128
  model_config: {hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32, num_hidden_layers: 16, num_key_value_heads: 8, vocab_size: 50257}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 1, optimizer_factory: {name: adamW, torch_adam_is_fused: true}}
parallelism: {dp: 8, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}
tokens: {micro_batch_size: 2, sequence_length: 4096, batch_accumulation_per_replica: 4}
"""


def test_nanotron() -> None:
    found = facts(NANOTRON, "config.yaml")
    assert reading(NANOTRON, "config.yaml").framework == "nanotron"
    assert (found["hardware.gpus_per_node"], found["hardware.nodes"], found["parallel.tensor"], found["parallel.strategy"]) == (8, 2, 2, "zero1")
    assert (found["batch.micro_batch"], found["batch.gradient_accumulation"], found["precision.gradients"]) == (2, 4, "fp32")
    assert (found["model.config"]["vocab_size"], found["model.config"]["num_key_value_heads"]) == (50_432, 8)


def test_a_script_that_reads_another_in_names_it() -> None:
    run = 'source "${DIR}/models/qwen3-4B.sh"\nARGS=(--hf-checkpoint /m/Qwen3-4B --rollout-num-gpus 8)\npython3 train.py ${MODEL_ARGS[@]} ${ARGS[@]}\n'
    listed = [item for item in reading(run).not_understood if item.text.startswith("source = ")]
    assert len(listed) == 1 and "MODEL_ARGS" in listed[0].why
    assert not any(item.text.startswith("source = ") for item in reading(run.replace("${MODEL_ARGS[@]} ", "")).not_understood)
    model = "MODEL_ARGS=(--num-layers 36 --hidden-size 2560 --num-attention-heads 32 --swiglu --vocab-size 151936 --ffn-hidden-size 9728)\n"
    both = read([("run.sh", run), ("qwen3-4B.sh", model)])
    assert not any(item.text.startswith("source = ") for item in both.evidence.not_understood)
    assert both.job.model.config is not None and both.job.model.config["num_hidden_layers"] == 36


def test_a_config_that_is_not_verls_own_is_named() -> None:
    text = f"{VERL} --config-name='gsm8k_multiturn_grpo'\n"
    assert any(item.text.startswith("config-name") for item in reading(text).not_understood)
    assert not any(item.text.startswith("config-name") for item in reading(f"{VERL} --config-name=ppo_megatron_trainer.yaml\n").not_understood)
    both = read([("run.sh", text), ("gsm8k_multiturn_grpo.yaml", "data:\n  max_prompt_length: 512\nactor_rollout_ref:\n  rollout:\n    n: 4\n")])
    assert not any(item.text.startswith("config-name") for item in both.evidence.not_understood)


def test_the_old_micro_batch_of_verl_is_shared_by_sequence_ranks() -> None:
    text = f"{VERL} actor_rollout_ref.actor.ppo_micro_batch_size=64 trainer.n_gpus_per_node=8 trainer.nnodes=1"
    assert facts(text)["batch.micro_batch"] == 8
    assert facts(f"{text} actor_rollout_ref.actor.ulysses_sequence_parallel_size=2")["batch.micro_batch"] == 16


def test_a_remark_does_not_speak_for_a_flag_that_is_given() -> None:
    text = "A=(\n  --hf-checkpoint /m/Qwen3-4B\n  #--hf-checkpoint /m/Qwen3-4B-FP8\n  --rollout-num-gpus 8\n)\npython3 train.py ${A[@]}\n"
    assert "rollout.weights" not in facts(text)
    assert facts(text.replace("  --hf-checkpoint /m/Qwen3-4B\n  #", "  "))["rollout.weights"] == "fp8"


def test_numbers_of_a_sequence() -> None:
    text = "A=(--hf-checkpoint /m/a-4B --sglang-cuda-graph-bs 1 2 $(seq 8 8 32) --rollout-num-gpus 8)\npython3 train.py ${A[@]}\n"
    assert any(item.text == "sglang-cuda-graph-bs = [1, 2, 8, 16, 24, 32]" for item in reading(text).not_understood)


def test_a_list_of_expert_layers_that_a_loop_builds() -> None:
    text = (
        "N=4\nFIRST_K_DENSE_REPLACE=1\narr=()\nfor ((i=0; i<N; i++)); do\n  arr+=(1)\ndone\n"
        'printf -v MOE_LAYER_FREQ "[%s]" "$(IFS=\', \'; echo "${arr[*]}")"\n'
        "MODEL_ARGS=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --swiglu --vocab-size 128 --ffn-hidden-size 256\n"
        '  --num-experts 8 --moe-ffn-hidden-size 32 --moe-layer-freq "$MOE_LAYER_FREQ")\n'
    )
    found = reading(text)
    assert {f.field: f.value for f in found.facts}["model.config"]["mlp_only_layers"] == [0]
    assert not any("moe-layer-freq" in item.text for item in found.not_understood)


@pytest.mark.parametrize(("kind", "listed"), [("lora", False), ("lora_llm", True), ("bone", True)])
def test_what_swift_trains_beside_adapters_is_listed(kind: str, listed: bool) -> None:
    found = reading(f"swift sft --model a/b-7B --tuner_type {kind} --per_device_train_batch_size 1")
    assert any(item.text.startswith("tuner_type") for item in found.not_understood) is listed


def test_the_optimizer_of_llama_factorys_new_arguments() -> None:
    text = "model: a/b-1B\ndist_config:\n  name: fsdp2\noptim_config:\n  name: muon\nmicro_batch_size: 1\ncutoff_len: 2048\n"
    found = reading(text, "train.yaml")
    assert (found.framework, {f.field: f.value for f in found.facts}["optimizer.name"]) == ("llama-factory", "muon")


def test_recipes_of_torchtune_for_several_devices_shard() -> None:
    found = read([("c.yaml", "# This config needs 8 GPUs to run\n" + TUNE + "batch_size: 1\n")])
    assert resolve(found.job, found.evidence).facts["parallel.strategy"].value == "fsdp2"


XTUNER = """
from mmengine.optim import AmpOptimWrapper
from xtuner.model import SupervisedFinetune
pretrained_model_name_or_path = "a/b-7b"
batch_size = 2
accumulative_counts = 16
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=pretrained_model_name_or_path, torch_dtype=torch.float16,
        quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4"),
    ),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16, lora_dropout=0.1),
)
train_dataset = dict(type=process_hf_dataset, max_length=2048, pack_to_max_length=True, use_varlen_attn=True)
train_dataloader = dict(batch_size=batch_size, dataset=train_dataset)
optim_wrapper = dict(type=AmpOptimWrapper, accumulative_counts=accumulative_counts, loss_scale="dynamic", dtype="bfloat16")
"""


def test_xtuner_is_read_through_its_dicts() -> None:
    found = facts(XTUNER, "c.py")
    assert reading(XTUNER, "c.py").framework == "xtuner"
    assert (found["model.name"], found["method.base"], found["method.rank"], found["method.double_quant"]) == ("a/b-7b", "nf4", 64, True)
    assert (found["method.targets"], found["method.kbit_preparation"], found["activations.checkpointing"]) == ("all-linear", True, "full")
    assert (found["batch.micro_batch"], found["batch.gradient_accumulation"], found["batch.seq_len"]) == (2, 16, 2048)
    assert (found["activations.sequence_packing"], found["precision.compute"], found["load.dtype"]) == ("padding-free", "bf16", "fp16")


def test_a_vision_tower_beside_xtuners_model_is_listed_and_not_the_model() -> None:
    tower = 'visual_encoder=dict(type=CLIPVisionModel.from_pretrained, pretrained_model_name_or_path="openai/clip"), lora=dict('
    text = XTUNER.replace("lora=dict(", tower, 1)
    assert facts(text, "c.py")["model.name"] == "a/b-7b"
    assert any("vision tower" in item.why for item in reading(text, "c.py").not_understood)


def test_degrees_are_listed_where_paths_of_data_are_not() -> None:
    text = "model_name: a/b-7B\ntraining:\n  data_path: /d\n  data_cache: /c\n  data_parallel_degree: 4\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n"
    listed = {item.text.partition(" = ")[0] for item in reading(text, "c.yaml").not_understood}
    assert "training.data_parallel_degree" in listed and not listed & {"training.data_path", "training.data_cache"}
