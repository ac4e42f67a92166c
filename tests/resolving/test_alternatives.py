"""What else an open value may be: only what the framework's own code leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.job import read_job
from advisor.rules.estimating import ledger_of
from advisor.run import Run, resolve


def run(framework: str, **sections: Any) -> Run:
    return resolve(read_job({"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "framework": {"name": framework}, **sections}))


@pytest.mark.parametrize(
    ("framework", "attention", "others"),
    [("torchtitan", "sdpa", ()), ("unsloth", "sdpa", ()), ("verl", "flash-2", ()), ("openrlhf", "flash-2", ()), ("hf-trainer", "sdpa", ("eager",))],
)
def test_attention_is_open_only_where_a_version_or_a_family_decides(framework: str, attention: str, others: tuple[str, ...]) -> None:
    fact = run(framework).facts["activations.attention"]
    assert (fact.value, fact.alternatives) == (attention, others)


@pytest.mark.parametrize(("framework", "others"), [("megatron-lm", ()), ("torchtitan", ()), ("hf-trainer", ("lora",))])
def test_adapters_are_open_only_where_the_trainer_has_them(framework: str, others: tuple[str, ...]) -> None:
    fact = run(framework).facts["method.kind"]
    assert (fact.value, fact.alternatives) == ("full", others)


def test_pretraining_trains_all_weights() -> None:
    assert run("hf-trainer", objective="pretrain").facts["method.kind"].alternatives == ()


@pytest.mark.parametrize(("gpu", "name", "held"), [("t4-16gb", "unsloth", False), ("t4-16gb", "hf-trainer", True), ("l4-24gb", "unsloth", False)])
def test_unsloth_holds_no_scores_on_a_card_without_flash_attention(gpu: str, name: str, held: bool) -> None:
    """unsloth models/llama.py: xformers' memory-efficient kernel where flash-attn has none; transformers' grouped heads end in the math kernel."""
    job = run(
        name, hardware={"gpu": gpu}, method={"kind": "lora", "base": "nf4", "rank": 16}, precision={"compute": "fp16"},
        batch={"micro_batch": 2, "seq_len": 4096, "packed": True}, activations={"checkpointing": "none"},
    )  # fmt: skip
    ledger = ledger_of(job)
    assert ledger is not None
    scores = 2 * 32 * 4096 * 4096 * 2  # of one layer, in 16 bit
    assert (sum(holding.bytes for holding in ledger.holdings if holding.part == "attention") >= scores) is held


def test_axolotl_without_rl_is_no_preference_training() -> None:
    fact = run("axolotl").facts["objective"]
    assert (fact.value, fact.kind, fact.alternatives) == ("sft", "default", ())
