"""A switch is no name: what stands beside a model's name is not taken for it."""

from __future__ import annotations

import pytest

from advisor.reading import read

CREATED = "model = timm.create_model('swin_base_patch4_window7_224', pretrained={}, num_classes=10)"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (CREATED.format(True), "swin_base_patch4_window7_224"),
        (CREATED.format(False), "swin_base_patch4_window7_224"),
        ("model = timm.create_model(model_name='deit_small_patch16_224', pretrained=True)", "deit_small_patch16_224"),
        ("NAME = 'convnext_tiny'\nmodel = create_model(NAME, pretrained=True)", "convnext_tiny"),
        ("model = torchvision.models.resnet50(pretrained=True)", None),
    ],
)
def test_pretrained_true_names_no_model(call: str, name: str | None) -> None:
    found = read([("train.py", f"import timm\nimport torch\n{call}\noptimizer = torch.optim.AdamW(model.parameters())\n")])
    assert found.job.model.name == name
    assert not any("pretrained" in item.text for item in found.evidence.not_understood)


def test_a_name_that_is_a_switch_in_a_file_is_no_name_either() -> None:
    assert read([("c.yaml", "base_model: true\nadapter: lora\nlora_r: 8\nmicro_batch_size: 1\n")]).job.model.name is None


@pytest.mark.parametrize("objective", ["sft", "dpo", "kto", "grpo", "rloo", "reward"])
@pytest.mark.parametrize(
    "launch",
    [
        "trl {}", "accelerate launch --num_processes 2 -m trl.scripts.{}", "python trl/scripts/{}.py", "torchrun --nproc_per_node 2 examples/scripts/{}.py",
        "srun -N 1 --gres=gpu:2 trl {}", "CUDA_VISIBLE_DEVICES=0 trl {} config.yaml",
    ],
)  # fmt: skip
def test_trls_command_names_the_objective(launch: str, objective: str) -> None:
    command = f"{launch.format(objective)} --model_name_or_path gpt2 --dataset_name d --per_device_train_batch_size 2 --max_length 512"
    found = read([("go.sh", command)])
    assert found.job.objective == objective
    assert found.job.framework.name == "trl"


def missed(*texts: tuple[str, str]) -> list[str]:
    return [item.text for item in read(list(texts)).evidence.not_understood]


def test_a_variable_is_no_riddle_where_its_value_is_known() -> None:
    rest = "a = TrainingArguments(output_dir='o', per_device_train_batch_size={})\nTrainer(model=m, args=a).train()\n"
    script = "m = AutoModelForCausalLM.from_pretrained('gpt2-medium')\n" + rest.format(2)
    assert missed(("t.py", script)) == []
    unknown = missed(("t.py", "m = build()\n" + rest.format("size()")))
    assert any(text.startswith("per_device_train_batch_size = ") for text in unknown)


def test_what_is_used_or_moves_no_memory_is_not_called_unknown() -> None:
    grpo = "c = GRPOConfig(output_dir='o', per_device_train_batch_size=4, beta=0.02, bf16=True)\nGRPOTrainer(model='gpt2', args=c).train()\n"
    verl = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B "
        "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.fsdp_config.use_orig_params=True"
    )
    fsdp = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 1\n  fsdp_use_orig_params: true\n"
    assert missed(("t.py", grpo)) == []
    assert missed(("t.sh", verl)) == []
    assert missed(("t.yaml", fsdp)) == []


@pytest.mark.parametrize("call", ['torch.autocast("cuda", dtype={})', 'torch.autocast(device_type="cuda", dtype={})', "torch.cuda.amp.autocast(dtype={})"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_autocast_says_what_is_computed_in_and_a_tensor_does_not(call: str, dtype: str) -> None:
    name = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[dtype]
    loop = f"import torch\nwith {call.format(name)}:\n    loss = model(x).loss\nloss.backward()\n"
    assert read([("t.py", loop)]).job.precision.compute == dtype
    assert read([("t.py", loop.replace(call.format(name), f"open(torch.zeros(3, dtype={name}))"))]).job.precision.compute is None


def test_fsdps_own_arguments_are_read_in_a_plain_script() -> None:
    script = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2-large')\n"
        "model = FSDP(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device(), use_orig_params=True,\n"
        "             mixed_precision=MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float32, buffer_dtype=torch.float16))\n"
    )
    found = read([("train.py", script)])
    assert (found.job.precision.compute, found.job.precision.reduce, found.job.parallel.strategy) == ("fp16", "fp32", "fsdp1")
    assert not found.evidence.not_understood
