"""What a step says that it does: the parts that it makes smaller, not those that are dead at the moment to which the peak moves."""

import pytest

from advisor import knowledge
from advisor.diagnosis import diagnose
from advisor.report import Step


def first_step(sample: str) -> Step:
    return diagnose(list(knowledge.load_yaml("samples", f"{sample}.yaml")["files"].items())).plan.steps[0]


def test_an_engine_that_sleeps_takes_off_the_engines_memory_not_the_gradients() -> None:
    step = first_step("2-grpo-engine")
    assert step.technique == "rollout-sleep" and "The peak moves from the backward pass to generation" in step.why
    assert "the engine's cache" in step.why and "gradients" not in step.why


@pytest.mark.parametrize("sample", ["1-loss-qlora", "3-dpo-zero2"])
def test_the_part_that_a_change_is_about_is_named_first(sample: str) -> None:
    named = {"1-loss-qlora": "logits", "3-dpo-zero2": "the reference model"}[sample]
    inside = first_step(sample).why.partition("(")[2]
    assert inside.rpartition(": ")[2].startswith(named) or inside.startswith((named, f"at the loss: {named}"))
