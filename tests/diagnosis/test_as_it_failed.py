"""An older default is inferred where the newest leave a failure unexplained, and only there."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import oom

SCRIPT = """from trl import DPOConfig, DPOTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
trainer = DPOTrainer(model=model, args=DPOConfig(output_dir="out"), train_dataset=dataset, processing_class=tokenizer)
trainer.train()
"""
SAID = "DPO training on one A100 80GB always runs out of memory in the first steps.\n"


def _loss(*texts: tuple[str, str]) -> tuple[object, str]:
    run = diagnose(list(texts)).run
    assert run is not None
    fact = run.facts["activations.loss"]
    return run.job.activations.loss, fact.kind


def test_a_failure_far_above_the_newest_defaults_is_an_older_ones() -> None:
    assert _loss(("said.txt", SAID), ("dpo.py", SCRIPT)) == ("full-fp32", "inferred")


@pytest.mark.parametrize(
    "other",
    [
        ("requirements.txt", "trl==1.8.0\ntransformers==5.2.0\n"),  # the version is read: its own default holds
        ("log.txt", oom("64.00 MiB", allocated=6.0, free=70.0)),  # the counters are those of the newest defaults
    ],
    ids=["version", "counters"],
)
def test_what_is_read_decides(other: tuple[str, str]) -> None:
    assert _loss(("said.txt", SAID), ("dpo.py", SCRIPT), other)[1] == "default"


def test_without_a_failure_nothing_is_inferred() -> None:
    assert _loss(("dpo.py", SCRIPT))[1] == "default"
