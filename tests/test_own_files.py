"""Changes as a diff of what was pasted: placed where the key stands or among its kin, never guessed, and read back."""

import pytest

from advisor import knowledge
from advisor.diagnosis import diagnose_reading
from advisor.own_files import Placed, pairs, placed
from advisor.reading import read

PYTHON = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(
    per_device_train_batch_size=8,  # as many as fit
    max_length=4096,
    bf16=True,
)
trainer = SFTTrainer(model="Qwen/Qwen2.5-7B", args=args)
"""
COMMAND = "accelerate launch train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 8 --bf16 true\n"
DEEPSPEED = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 8}'
AXOLOTL = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 4096\nmicro_batch_size: 8   # per card\nbf16: true\noptimizer: adamw_torch\n"


def put(files: dict[str, str], change: dict[str, dict[str, object]], settings: dict[str, tuple[str, ...]]) -> Placed:
    texts = list(files.items())
    reading = read(texts)
    run = diagnose_reading(reading).run
    assert run is not None
    return placed(texts, reading.evidence, settings, run.job, run.job.but(**change))


def test_a_key_that_is_there_gets_its_new_value_and_a_new_one_goes_beside_its_kin() -> None:
    found = put(
        {"train.py": PYTHON},
        {"batch": {"micro_batch": 2, "gradient_accumulation": 4}},
        {"trl": ("per_device_train_batch_size=2", "gradient_accumulation_steps=4")},
    )
    (file,) = found.files
    assert "    per_device_train_batch_size=2,  # as many as fit" in file.after
    assert "    gradient_accumulation_steps=4,\n" in file.after
    compile(file.after, "train.py", "exec")
    assert file.diff.startswith("--- a/train.py") and "+    gradient_accumulation_steps=4," in file.diff


def test_on_a_command_line() -> None:
    found = put({"run.sh": COMMAND}, {"batch": {"micro_batch": 2}}, {"hf-trainer": ("per_device_train_batch_size=2",)})
    assert "--per_device_train_batch_size 2 --bf16" in found.files[0].after


def test_in_json_only_the_change_differs() -> None:
    found = put({"ds.json": DEEPSPEED}, {"parallel": {"strategy": "zero3"}}, {"deepspeed": ('{"zero_optimization": {"stage": 3}}',)})
    changed = [line for line in found.files[0].diff.splitlines()[2:] if line[0] in "+-"]
    assert [line.strip("+- ") for line in changed] == ['"stage": 2', '"stage": 3']


def test_in_yaml_the_remark_behind_a_value_stays() -> None:
    found = put(
        {"axolotl.yaml": AXOLOTL},
        {"batch": {"micro_batch": 2}, "activations": {"checkpointing": "full"}},
        {"axolotl": ("micro_batch_size: 2", "gradient_checkpointing: true")},
    )
    (file,) = found.files
    assert "micro_batch_size: 2   # per card\n" in file.after and file.after.endswith("gradient_checkpointing: true\n")


def test_half_of_a_change_is_not_offered() -> None:
    lines = ("per_device_train_batch_size=2", "no_such_key=True")
    found = put(
        {"run.sh": "echo nothing\n", "train.py": PYTHON}, {"batch": {"micro_batch": 2}}, {"script": ("# code", "x()"), "peft": ("LoraConfig(..., r=8)",)}
    )
    assert not found.files and set(found.left) == {"script", "peft"}
    assert pairs(lines) == [(("per_device_train_batch_size",), 2), (("no_such_key",), True)]


def test_what_does_not_read_back_as_wanted_is_not_offered() -> None:
    found = put({"train.py": PYTHON}, {"batch": {"micro_batch": 2}}, {"trl": ("per_device_train_batch_size=3",)})
    assert not found.files and found.left == {"trl": ("per_device_train_batch_size=3",)}


@pytest.mark.parametrize("name", sorted(p.stem for p in knowledge.path("samples").glob("*.yaml")))
def test_the_plans_of_the_samples_keep_their_files_readable(name: str) -> None:
    texts = list(knowledge.load_yaml("samples", f"{name}.yaml")["files"].items())
    reading = read(texts)
    report = diagnose_reading(reading)
    for step in report.plan.steps:
        if step.run is None or report.run is None:
            continue
        found = placed(texts, reading.evidence, step.settings, report.run.job, step.run.job)
        for file in found.files:
            assert file.before != file.after and file.diff


MEGATRON = """MBS=4
ARGS=(
    --micro-batch-size $MBS
    --seq-length 4096   # tokens
    --recompute-granularity full
    --recompute-method uniform
)
torchrun pretrain_gpt.py ${ARGS[@]} --bf16
"""


def test_in_a_script_a_flag_in_an_array_gets_its_new_value() -> None:
    found = put({"run.sh": MEGATRON}, {"batch": {"micro_batch": 2, "seq_len": 2048}}, {"megatron-lm": ("--micro-batch-size 2", "--seq-length 2048")})
    assert [line for line in found.files[0].diff.splitlines()[2:] if line[0] in "+-"] == [
        "-    --micro-batch-size $MBS", "-    --seq-length 4096   # tokens", "+    --micro-batch-size 2", "+    --seq-length 2048   # tokens",
    ]  # fmt: skip


OPENRLHF = (
    "python3 -m openrlhf.cli.train_sft \\\n   --model.model_name_or_path a/b-8B \\\n   --train.micro_batch_size 2 \\\n"
    "   --model.gradient_checkpointing_enable \\\n   --ds.zero_stage 2\n"
)


def test_a_switch_is_taken_out_with_its_line() -> None:
    lines = ("# without --model.gradient_checkpointing_enable", "--train.micro_batch_size 1")
    found = put({"run.sh": OPENRLHF}, {"batch": {"micro_batch": 1}, "activations": {"checkpointing": "none"}}, {"openrlhf": lines})
    after = found.files[0].after
    assert "gradient_checkpointing" not in after and "--train.micro_batch_size 1 \\\n   --ds.zero_stage 2" in after


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n    actor_rollout_ref.model.path=a/b-7B \\\n"
    "    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\\n    +actor_rollout_ref.rollout.n=5 $@\n"
)


def test_an_override_keeps_its_line_and_its_sign() -> None:
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    lines = (f"{key}=4", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.model.enable_gradient_checkpointing=False")
    change: dict[str, dict[str, object]] = {"batch": {"micro_batch": 4, "generations": 8}, "activations": {"checkpointing": "none"}}
    after = put({"run.sh": VERL}, change, {"verl": lines}).files[0].after
    assert f"    {key}=4 \\\n" in after and "+actor_rollout_ref.rollout.n=8" in after and "enable_gradient_checkpointing=False" in after
    again = read([("run.sh", after)]).job
    assert (again.batch.micro_batch, again.batch.generations, again.activations.checkpointing) == (4, 8, "none")
