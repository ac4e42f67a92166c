"""``use_liger_kernel`` selects the fused loss of a preference or GRPO trainer from TRL 0.25 on; before, ``use_liger_loss`` did."""

from __future__ import annotations

import pytest

from advisor import diagnose
from advisor.run import Run
from advisor.techniques import NotApplicable, all_techniques

SCRIPT = """
from trl import {trainer}Config, {trainer}Trainer
args = {trainer}Config(per_device_train_batch_size=2, bf16=True, {switches})
{trainer}Trainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=ds).train()
"""


def read(trainer: str, version: str | None, switches: str = "use_liger_kernel=True") -> Run:
    texts = [("train.py", SCRIPT.format(trainer=trainer, switches=switches))]
    found = diagnose([*texts, ("pip.txt", f"trl=={version}\n")] if version else texts).run
    assert found is not None
    return found


@pytest.mark.parametrize("trainer", ["DPO", "GRPO", "KTO"])
@pytest.mark.parametrize(("version", "loss"), [("0.16.1", "full-fp32"), ("0.20.0", "full-fp32"), ("0.24.0", "full-fp32"), ("0.25.1", "fused-linear")])
def test_the_kernels_are_read_and_the_loss_by_release(trainer: str, version: str, loss: str) -> None:
    found = read(trainer, version)
    assert found.job.activations.loss == loss
    assert found.job.activations.kernels == ("rmsnorm", "swiglu", "rope")
    if loss != "fused-linear":
        assert version in (found.facts["activations.loss"].why or "")


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0"])
def test_the_key_of_the_loss_is_believed_and_can_still_be_set(version: str) -> None:
    both = read("DPO", version, "use_liger_kernel=True, use_liger_loss=True")
    assert both.job.activations.loss == "fused-linear"
    after = all_techniques()["fused-linear-loss"].apply(read("DPO", version))
    assert not isinstance(after, NotApplicable)
    assert after.job.activations.loss == "fused-linear"


def test_next_token_training_has_it_in_every_release_and_other_objectives_in_none() -> None:
    assert read("SFT", "0.20.0").job.activations.loss == "fused-linear"
    assert read("DPO", None).job.activations.loss == "fused-linear"  # the newest release
    assert read("ORPO", None).job.activations.loss != "fused-linear"
