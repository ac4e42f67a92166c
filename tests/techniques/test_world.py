"""The world of a run is a fact about it: no technique but those about ranks may move it, least of all where it was only seen, not written."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.evidence import Device, Evidence, Failure
from advisor.job import read_job
from advisor.planning import plan
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques
from advisor.techniques.conditions import cards_present
from tests.techniques import zoo

ABOUT_RANKS = frozenset({"more-gpus", "separate-rollout", "correct-launch"})
RANK_3 = Evidence(failures=(Failure("gpu-memory", "log.txt:1", "", rank=3),))
FOUR_CARDS = Evidence(devices=tuple(Device("smi.txt:1", index=i) for i in range(4)))


def seen(evidence: Evidence, framework: str, strategy: str, **sections: Any) -> Run:
    """A job whose number of GPUs is written nowhere."""
    job = {
        "version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "method": {"kind": "full"}, "objective": "sft", "parallel": {"strategy": strategy},
        "batch": {"micro_batch": 2, "seq_len": 8192, "gradient_accumulation": 2}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": framework},
    }  # fmt: skip
    return resolve(read_job({**job, **sections}), evidence)


RUNS = [
    pytest.param(seen(evidence, framework, strategy), id=f"{framework}-{strategy}-{kind}")
    for kind, evidence in (("rank", RANK_3), ("devices", FOUR_CARDS))
    for framework, strategy in (
        ("llama-factory", "zero3"), ("llama-factory", "zero2"), ("axolotl", "fsdp2"), ("trl", "ddp"), ("torchtitan", "fsdp2"), ("megatron-lm", "megatron"),
        ("custom", "fsdp1"),
    )
]  # fmt: skip


@pytest.mark.parametrize("start", RUNS)
def test_ranks_that_were_only_seen_stay_under_every_technique(start: Run) -> None:
    assert start.world == 4
    tried = 0
    for name, technique in all_techniques().items():
        after = technique.apply(start) if name not in ABOUT_RANKS else None
        if isinstance(after, Run):
            tried += 1
            assert after.world == 4, name
            assert cards_present(after) == 4, name
            again = technique.apply(after)
            assert not isinstance(again, Run) or again.world == 4, name
    assert tried > 5


@pytest.mark.parametrize("name", [n for n in all_techniques() if n not in ABOUT_RANKS])
def test_the_world_stays_where_no_card_stands_idle(name: str) -> None:
    for before in (*zoo.written(), *zoo.measured(), *zoo.deviating()):
        after = all_techniques()[name].apply(before) if cards_present(before) == before.world else None
        if isinstance(after, Run):
            assert after.world == before.world, before.job.name


def test_a_plan_saves_nothing_by_cards_that_are_not_there() -> None:
    start = seen(RANK_3, "llama-factory", "zero3")
    made = plan(start, causes=("logits-memory",))
    for step in (*made.steps, *made.alternatives, *made.runner_up):
        assert step.run is None or step.tier == "hardware" or step.run.world == start.world, step.technique


def test_what_a_key_of_the_log_settled_is_settled_so_again_after_a_change() -> None:
    evidence = Evidence(seen_keys=(("args.py:3", "beta", 0.04),))
    grpo = {"version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "objective": "grpo", "batch": {"micro_batch": 4, "seq_len": 1024}, "framework": {"name": "trl"}}
    start = resolve(read_job(grpo), evidence)
    assert start.job.reference == "copy"
    assert start.but(batch={"micro_batch": 2}).job.reference == "copy"
    assert start.but(method={"kind": "lora"}).job.reference == "adapter-off"  # and what follows from the change follows still


@pytest.mark.parametrize("technique", ["zero-1", "zero-2", "zero-3", "fsdp"])
def test_with_one_gpu_dividing_is_out_of_the_question_whatever_else_is_unknown(technique: str) -> None:
    run = resolve(read_job({"version": 1, "model": {"name": "mistralai/Mistral-7B-v0.1"}, "method": {"kind": "full"}, "framework": {"name": "hf-trainer"},
                            "hardware": {"gpu": "a100-80gb", "gpus_per_node": 1}, "batch": {"micro_batch": 1}}))  # fmt: skip
    assert run.missing
    refused = all_techniques()[technique].apply(run)
    assert isinstance(refused, NotApplicable) and refused.settled
