"""Lines of a plan are those that the user's own program can take."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.diagnosis import diagnose
from advisor.planner.lines import SCRIPT, changed_lines
from advisor.program import of_run
from advisor.reading import read
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free. "
    "Of the allocated memory 76.20 GiB is allocated by PyTorch, and 610.00 MiB is reserved by PyTorch but unallocated."
)
LIGHTNING = """import lightning as L
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-1b", torch_dtype=torch.float32)
    def training_step(self, batch, index):
        return self.net(**batch).loss
trainer = L.Trainer(accelerator="gpu", devices=4, strategy="ddp", precision="bf16-mixed")
loader = torch.utils.data.DataLoader(ds, batch_size=8)
"""
OWN = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-1b").cuda())
for batch in torch.utils.data.DataLoader(ds, batch_size=8):
    model(**batch).loss.backward()
"""


def run_of(text: str, name: str = "train.py", **job: Any) -> Run:
    found = read([(name, text)])
    return resolve(found.job.but(**job) if job else found.job, found.evidence)


def lines(run: Run, technique: str) -> str:
    after = all_techniques()[technique].apply(run)
    assert not isinstance(after, NotApplicable), after.reason
    found = changed_lines(run, after, technique)
    assert not found.keys() & {"hf-trainer", "accelerate", "fsdp"}, found
    return "\n".join(found.get(SCRIPT, ()))


@pytest.mark.parametrize(("text", "loop", "model"), [(LIGHTNING, "lightning", "self.net"), (OWN, "own", "model")], ids=["lightning", "own"])
def test_the_loop_and_the_model_are_seen(text: str, loop: str, model: str) -> None:
    program = of_run(run_of(text))
    assert (program.loop, program.model, program.images) == (loop, model, False)


def test_lightning_gets_lines_of_its_own() -> None:
    run = run_of(LIGHTNING, batch={"seq_len": 1024}, activations={"checkpointing": "none"})
    assert "self.net.gradient_checkpointing_enable(" in lines(run, "gradient-checkpointing")
    assert lines(run, "zero-3") == 'trainer = Trainer(strategy="deepspeed_stage_3")'
    assert "FSDPStrategy" in lines(run, "fsdp")
    assert "self.net" in lines(run, "selective-checkpointing") and "model.model" not in lines(run, "selective-checkpointing")


def test_a_plain_loop_gets_no_trainer_arguments() -> None:
    run = run_of(OWN, batch={"seq_len": 1024}, hardware={"gpus_per_node": 4}, activations={"checkpointing": "none"})
    assert "model.gradient_checkpointing_enable(" in lines(run, "gradient-checkpointing")
    assert "fully_shard(block)" in lines(run, "fsdp")


@pytest.mark.parametrize(
    ("strategy", "call"),
    [("fsdp1", "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"), ("fsdp2", "cpu_offload=True"), ("zero3", "save_checkpoint(path)")],
)
def test_a_full_save_is_divided_or_gathered_on_the_host(strategy: str, call: str) -> None:
    run = run_of(OWN, parallel={"strategy": strategy, "shard": 4, "replicate": 1}, batch={"seq_len": 1024}, save={"format": "full"})
    after = all_techniques()["sharded-save"].apply(run)
    assert not isinstance(after, NotApplicable)
    found = "\n".join(line for text in changed_lines(run, after, "sharded-save").values() for line in text)
    assert call in found or (strategy == "zero3" and "stage3_gather" in found)
    assert "adapter" not in found


HOOKS = ["_post_state_dict_hook", "_full_post_state_dict_hook"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_state_dict_hook_is_a_save(hook: str) -> None:
    text = f"""Traceback (most recent call last):
  File "/app/train.py", line 210, in store
    cpu_state = model.state_dict()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/fsdp/_state_dict_utils.py", line 715, in {hook}
{OOM}"""
    report = diagnose([("log.txt", text)])
    assert report.findings[0].cause == "save-gather"
    step = report.plan.steps[0]
    assert step.technique == "sharded-save"
    assert set(step.settings) == {SCRIPT}
    assert any("rank0_only=True" in line for line in step.settings[SCRIPT])


TRL = "trl sft --model_name_or_path google/gemma-3-4b-it --per_device_train_batch_size 8 --max_length 2048 --use_peft --gradient_checkpointing False"
DIFFUSERS = 'accelerate launch train_text_to_image.py --pretrained_model_name_or_path="runwayml/stable-diffusion-v1-5" --train_batch_size=8'
VISION = """import timm, torch
model = timm.create_model("vit_large_patch16_224", pretrained=True)
loader = torch.utils.data.DataLoader(ds, batch_size=128)
"""


@pytest.mark.parametrize(
    ("technique", "line"),
    [
        ("smaller-micro-batch", "--per_device_train_batch_size 4"),
        ("gradient-checkpointing", "--gradient_checkpointing True"),
        ("qlora", "--load_in_4bit True"),
    ],
)
def test_a_command_is_told_flags(technique: str, line: str) -> None:
    run = run_of(TRL, "run.sh", hardware={"gpu": "a100-80gb"})
    after = all_techniques()[technique].apply(run)
    assert not isinstance(after, NotApplicable), after.reason
    found = [text for layer, some in changed_lines(run, after, technique).items() if layer != "launch" for text in some]
    assert line in found and all(text.startswith("--") for text in found), found


def test_a_scripts_flag_keeps_its_name() -> None:
    run = run_of(DIFFUSERS, "run.sh")
    after = all_techniques()["smaller-micro-batch"].apply(run)
    assert not isinstance(after, NotApplicable)
    assert changed_lines(run, after, "smaller-micro-batch") == {SCRIPT: ("--train_batch_size 4",)}


@pytest.mark.parametrize(("text", "name"), [(DIFFUSERS, "run.sh"), (VISION, "train.py")], ids=["diffusers", "timm"])
def test_no_text_technique_for_an_image_model(text: str, name: str) -> None:
    run = run_of(text, name)
    for technique in ("shorter-sequence", "sequence-packing", "cap-longest-batch", "bounded-shapes"):
        changed = all_techniques()[technique].apply(run)
        assert isinstance(changed, NotApplicable) and changed.settled
    report = diagnose([(name, text), ("log.txt", OOM)])
    assert not {step.technique for step in report.plan.steps} & {"shorter-sequence", "sequence-packing", "cap-longest-batch", "bounded-shapes"}


@pytest.mark.parametrize(("text", "name", "line"), [(DIFFUSERS, "run.sh", "enable_gradient"), (VISION, "train.py", "set_grad")], ids=["diffusers", "timm"])
def test_an_image_library_has_its_own_switch(text: str, name: str, line: str) -> None:
    run = run_of(text, name, activations={"checkpointing": "none"})
    found = lines(run, "gradient-checkpointing")
    assert line in found and "use_cache" not in found


def test_a_language_model_with_pictures_is_no_image_model() -> None:
    text = "model = Qwen2VLForConditionalGeneration.from_pretrained(name)\nbackbone = timm.create_model('vit_base_patch16_224')\nloss.backward()\n"
    assert not of_run(run_of(text)).images


def test_ligers_class_is_read_and_its_two_savings_are_one() -> None:
    text = OWN.replace("AutoModelForCausalLM", "AutoLigerKernelForCausalLM").replace("EleutherAI/pythia-1b", "meta-llama/Llama-3.2-1B")
    run = run_of(text, batch={"seq_len": 1024})
    assert run.job.activations.loss == "fused-linear" and run.job.activations.kernels
    plain = run_of(OWN.replace("EleutherAI/pythia-1b", "meta-llama/Llama-3.2-1B"), batch={"seq_len": 1024})
    fused = all_techniques()["fused-linear-loss"].apply(plain)
    assert not isinstance(fused, NotApplicable)
    assert isinstance(all_techniques()["fused-kernels"].apply(fused), NotApplicable)


def test_a_key_that_is_there_is_changed_and_not_written_twice() -> None:
    text = "base_model: Qwen/Qwen2.5-7B\nmicro_batch_size: 1\nsequence_len: 4096\nfsdp: [full_shard, auto_wrap]\n"
    text += "fsdp_config:\n  fsdp_cpu_ram_efficient_loading: false\n"
    run = run_of(text, "config.yml")
    after = all_techniques()["load-sharded"].apply(run)
    assert not isinstance(after, NotApplicable), after.reason
    assert "  fsdp_cpu_ram_efficient_loading: true" in changed_lines(run, after, "load-sharded")["axolotl"]
