"""What a stranger found silly in a plan, one test for each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from advisor.job import read_job
from advisor.planning import plan
from advisor.run import Run, resolve
from advisor.techniques import NotApplicable, all_techniques


def run(**sections: Any) -> Run:
    return resolve(read_job({"version": 1, "objective": "sft", **sections}))


def on_a_t4(**sections: Any) -> Run:
    return run(
        model={"name": "Qwen/Qwen2.5-1.5B"}, batch={"micro_batch": 8, "seq_len": 4096}, hardware={"gpu": "t4-16gb", "gpus_per_node": 1},
        framework={"name": "trl"}, **{"method": {"kind": "lora", "rank": 16}, "precision": {"compute": "bf16"}, **sections},
    )  # fmt: skip


def test_a_card_without_bf16_is_asked_to_compute_in_fp16() -> None:
    step = plan(on_a_t4()).steps[0]
    assert step.technique == "restore-flash-attention"
    assert step.run is not None
    assert step.run.job.precision.compute == "fp16"
    assert not step.exact
    assert any("fp16" in line for lines in step.settings.values() for line in lines)


def test_fp16_is_not_asked_of_weights_that_are_stepped_in_bf16_alone() -> None:
    pure = on_a_t4(method={"kind": "full"}, precision={"compute": "bf16", "weights": "bf16", "mixed": "none"})
    assert isinstance(all_techniques()["restore-flash-attention"].apply(pure), NotApplicable)


def test_sequence_parallelism_is_free_and_comes_before_recomputation() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 65536, "gradient_accumulation": 64},
        parallel={"strategy": "megatron", "tensor": 8}, hardware={"gpu": "h100-80gb", "gpus_per_node": 8}, framework={"name": "megatron-lm"},
        precision={"compute": "bf16"}, activations={"checkpointing": "none"},
    )  # fmt: skip
    names = [step.technique for step in plan(start).steps]
    assert "sequence-parallel" in names
    assert not {"gradient-checkpointing", "selective-checkpointing"} & set(names)


@pytest.mark.parametrize("name", ["trl", "hf-trainer", "axolotl", "llama-factory", "ms-swift", "accelerate"])
def test_no_fsdp_beside_a_deepspeed_config(name: str) -> None:
    start = run(
        model={"name": "Qwen/Qwen2.5-14B"}, method={"kind": "full"}, batch={"micro_batch": 1, "seq_len": 4096}, framework={"name": name},
        parallel={"strategy": "zero2", "shard": 8}, hardware={"gpu": "a100-80gb", "gpus_per_node": 8},
    )  # fmt: skip
    refused = all_techniques()["fsdp"].apply(start)
    assert isinstance(refused, NotApplicable)
    assert "ZeRO stage" in refused.reason
    assert isinstance(all_techniques()["zero-3"].apply(start), Run)


def test_unsloth_gets_no_line_of_ligers() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "lora"}, batch={"micro_batch": 8, "seq_len": 8192}, framework={"name": "unsloth"},
        activations={"checkpointing": "none"}, hardware={"gpu": "rtx4090-24gb", "gpus_per_node": 1},
    )  # fmt: skip
    made = plan(start)
    lines = [line for step in (*made.steps, *made.runner_up, *made.alternatives) for group in step.settings.values() for line in group]
    assert not any("liger" in line for line in lines)
    assert "gradient-checkpointing" in [step.technique for step in made.steps]
    assert any(re.search(r"use_gradient_checkpointing=.unsloth.", line) for line in lines)
