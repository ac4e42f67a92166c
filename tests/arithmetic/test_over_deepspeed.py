"""What frameworks over DeepSpeed bring of their own: the reduce bucket of their configurations by stage, and the dtype in which they hand the model over."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 2, "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip


def bucket(framework: str, strategy: str, versions: dict[str, str] | None = None) -> int:
    """Bytes of the reduce bucket at its largest."""
    job = read_job({
        "version": 1, "model": {"config": LLAMA}, "method": {"kind": "full"},
        "precision": {"weights": "bf16", "compute": "bf16", "mixed": "deepspeed"}, "batch": {"micro_batch": 1, "seq_len": 128},
        "parallel": {"strategy": strategy, "shard": 2}, "framework": {"name": framework, "versions": {"deepspeed": "0.16.0", **(versions or {})}},
    })  # fmt: skip
    return sum(h.bytes for h in estimate(job).holdings if h.name == "reduce bucket")


@pytest.mark.parametrize(
    ("framework", "elements"),
    [("deepspeed", 500_000_000), ("llama-factory", 2 * 500_000_000), ("axolotl", 2 * 500_000_000), ("ms-swift", 200_000_000)],
)
def test_stage_two_has_the_bucket_of_the_shipped_configuration(framework: str, elements: int) -> None:
    assert bucket(framework, "zero2") == 2 * elements


def test_a_second_bucket_came_with_overlap_comm_until_ms_swift_switched_it_off() -> None:
    assert bucket("ms-swift", "zero2", {"ms-swift": "3.2.0"}) == 2 * 2 * 200_000_000


def test_stage_three_of_those_frameworks_says_auto() -> None:
    assert bucket("llama-factory", "zero3") == 2 * 4096 * 4096  # hidden x hidden, in 16 bits


def test_llama_factory_holds_trained_weights_in_fp32_until_the_engine_narrows_them() -> None:
    def loading(framework: str, strategy: str) -> int:
        job = read_job({
            "version": 1, "model": {"config": LLAMA}, "method": {"kind": "full"},
            "precision": {"weights": "bf16", "compute": "bf16", "mixed": "deepspeed"}, "batch": {"micro_batch": 1, "seq_len": 128},
            "parallel": {"strategy": strategy, "shard": 2}, "framework": {"name": framework},
        })  # fmt: skip
        return estimate(job).allocated_by_moment()["load.materialise"]

    assert loading("llama-factory", "zero2") == 2 * loading("deepspeed", "zero2")
    assert loading("llama-factory", "zero3") == loading("deepspeed", "zero3")
