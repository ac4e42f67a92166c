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
