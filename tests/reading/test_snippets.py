"""Python between the other lines of a paste: read as one script, whatever stands around it; and nothing that only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.reading import read
from advisor.reading.snippets import python_lines
from advisor.run import resolve

ERROR = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/usr/lib/python3/dist-packages/torch/distributed/fsdp/_flat_param.py", line 1381, in _all_gather_flat_param
[rank0]:     dist.all_gather_into_tensor(
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 25.10 GiB. GPU 0 has a total capacity of 39.39 GiB of which 13.20 GiB is free. \
Including non-PyTorch memory, this process has 26.19 GiB memory in use. Of the allocated memory 25.67 GiB is allocated by PyTorch, and 100.00 MiB is \
reserved by PyTorch but unallocated.
"""
FSDP = (
    ERROR
    + """
my wrapping:

model = LlamaForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf")
model = FSDP(model, device_id=torch.cuda.current_device())
for batch in loader:   # bs 1, seq 1024
    loss = model(**batch).loss
    loss.backward()

torchrun --nproc_per_node=8 train.py    # 8x A100 40GB
"""
)
GRPO = """\
args = GRPOConfig(
    output_dir="grpo-qwen3b",
    vllm_gpu_memory_utilization=0.9, use_vllm=True,
    per_device_train_batch_size=8,
)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-3B-Instruct", args=args)

$ accelerate launch --num_processes 1 grpo.py
INFO 03-04 12:01:11 [worker.py:267] model weights take 5.79GiB; non_torch_memory takes 0.16GiB.
"""
POSITIONAL = (
    'hello all, this dies:\n\ntrainer = SFTTrainer("Qwen/Qwen2.5-1.5B-Instruct", args=SFTConfig(per_device_train_batch_size=2))\ntrainer.train()\nthanks\n'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FSDP, {"model.name": "meta-llama/Llama-2-7b-hf", "parallel.strategy": "fsdp1", "hardware.gpus_per_node": 8}),
        (GRPO + ERROR, {"model.name": "Qwen/Qwen2.5-3B-Instruct", "batch.micro_batch": 8, "rollout.memory_fraction": 0.9}),
        (POSITIONAL + ERROR, {"model.name": "Qwen/Qwen2.5-1.5B-Instruct", "batch.micro_batch": 2, "objective": "sft"}),
    ],
    ids=["fsdp", "grpo", "positional"],
)
def test_code_within_a_paste_is_read(text: str, expected: dict[str, Any]) -> None:
    found = read([("paste.txt", text)])
    job = resolve(found.job, found.evidence).job
    assert {path: job.get(path) for path in expected} == expected


def test_the_lines_stay_true() -> None:
    found = read([("paste.txt", FSDP)])
    fact = next(fact for fact in found.evidence.facts if fact.field == "model.name")
    assert fact.where == f"paste.txt:{FSDP[: FSDP.index('model = Llama')].count(chr(10)) + 1}"


@pytest.mark.parametrize(
    "text",
    [
        ERROR,
        "model = Qwen/Qwen2.5-1.5B-Instruct, 1x L40S 48GB\nit fails in from_pretrained(...) and Trainer( too\n",
        'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nmodel = AutoModel.from_pretrained("gpt2")\nValueError: no\n',
        "pad = pad(\nfrom_pretrained(\n" * 30,
    ],
    ids=["traceback", "prose", "source line", "never closed"],
)
def test_what_only_looks_like_code_is_left(text: str) -> None:
    assert not python_lines(text)


@pytest.mark.parametrize(
    "text", ["x = from_pretrained(\n" * 4000, "a(" * 100_000, "def f():\n    from_pretrained(1)\n\n" * 3000 + "end", "(" * 5000 + "from_pretrained("]
)
def test_hostile_text_ends(text: str) -> None:
    assert len(python_lines(text)) <= 3000
