"""What a traceback proves of the loss goes before the default of a version that nobody read."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom, trace

SCRIPT = (
    'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")\n'
    "args = SFTConfig(per_device_train_batch_size=4, max_length=4096, bf16=True{more})\ntrainer = SFTTrainer(model=model, args=args)\ntrainer.train()\n"
)
WIDENED = trace("transformers/loss/loss_utils.py|ForCausalLMLoss|logits = logits.float()")


@pytest.mark.parametrize(
    ("frames", "request_", "more", "loss"),
    [
        (WIDENED, "9.28 GiB", "", "full-fp32"),
        (WIDENED, "7.28 GiB", "", "chunked"),  # the request is no tensor of logits
        (trace("torch/optim/adamw.py|step|exp_avg_sq = torch.zeros_like(p)"), "9.28 GiB", "", "chunked"),
        (WIDENED, "9.28 GiB", ", use_liger_kernel=True", "fused-linear"),  # it was asked for: that it has no effect is a fault
    ],
)
def test_whole_logits_in_the_traceback(frames: str, request_: str, more: str, loss: str) -> None:
    report = diagnose([("error.txt", frames + oom(request_, allocated=72.1)), ("train.py", SCRIPT.format(more=more))])
    assert report.run is not None and report.run.job.activations.loss == loss
    assert loss != "full-fp32" or (report.findings[0].cause == "logits" and report.plan.steps[0].technique in ("fused-linear-loss", "chunked-loss"))
