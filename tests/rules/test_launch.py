"""One process is a wrong launch only where more GPUs are meant."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom, trace

CONFIG = (
    "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: none\n"
    "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 1\n"
)
TRAIN = (
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)\n'
    "args = TrainingArguments(bf16=True, gradient_checkpointing=True, per_device_train_batch_size=1)\n"
)
ERROR = trace("deepspeed/runtime/zero/stage3.py|initialize_optimizer_states|self._optimizer_step(i)") + oom("3.73 GiB", allocated=75.1, free=2.9)


@pytest.mark.parametrize(
    ("said", "wrong"), [("", False), ("# 8x A100 in this node\n", True), ("CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch train.py\n", True)]
)
def test_one_process(said: str, wrong: bool) -> None:
    report = diagnose([("accelerate.yaml", CONFIG), ("train.py", TRAIN), ("error.txt", said + ERROR)])
    marks = {s.mark for f in report.findings for s in f.evidence}
    assert ("sharding-inactive-one-process" in marks) is wrong
