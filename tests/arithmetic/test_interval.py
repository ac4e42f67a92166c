"""Ranges: they hold the expected figure, move with what is assumed, and end at the card."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from advisor.arithmetic import estimate
from advisor.arithmetic.interval import errors, kinds
from advisor.evidence import Fact
from advisor.job import Job
from advisor.run import resolve
from tests.arithmetic.jobs import job


def test_low_expected_high_are_in_order() -> None:
    for interval in estimate(job()).totals().values():
        assert 0 <= interval.low <= interval.expected <= interval.high


def test_an_assumption_widens_the_range() -> None:
    run = resolve(job())
    facts = {**run.facts, "activations.checkpointing": Fact("activations.checkpointing", "full", "assumed", alternatives=("none",))}
    sure, unsure = estimate(run).totals()["max_allocated"], estimate(replace(run, facts=facts)).totals()["max_allocated"]
    assert unsure.expected == sure.expected
    assert unsure.high > sure.high


def test_an_alternative_that_the_field_does_not_take_is_passed_over() -> None:
    run = resolve(job())
    facts = {**run.facts, "activations.checkpointing": Fact("activations.checkpointing", "full", "assumed", alternatives=(0.5,))}
    assert estimate(replace(run, facts=facts)).totals()["max_allocated"] == estimate(run).totals()["max_allocated"]


def test_kinds_go_from_narrow_to_all_and_a_table_holds_the_exact_estimate() -> None:
    found = kinds(resolve(job()))
    assert found[-1] == "all"
    low, high = errors("max_allocated", found)
    assert low <= 1.0 <= high


def test_totals_nest() -> None:
    totals = estimate(job(framework={"versions": {}})).totals()
    allocated, reserved, used = (totals[name] for name in ("max_allocated", "max_reserved", "device_used"))
    assert allocated.low <= reserved.low <= used.low
    assert allocated.high <= reserved.high <= used.high


def test_samples_below_a_bound_that_they_are_not_packed_to_may_need_less() -> None:
    def width(**batch: Any) -> tuple[int, int, int]:
        total = estimate(job(batch={"micro_batch": 8, "seq_len": 4096, **batch})).totals()["max_allocated"]
        return total.low, total.expected, total.high

    packed, bounded, known = width(packed=True), width(packed=False), width(packed=False, lengths={"max": 4096})
    assert bounded[1] == packed[1] and bounded[2] == packed[2]
    assert bounded[0] < 0.8 * packed[0]
    assert known[0] > bounded[0]


def test_without_the_rate_limiter_every_block_may_be_gathered_at_once() -> None:
    def high(**parallel: Any) -> int:
        return estimate(job(parallel={"strategy": "fsdp1", "shard": 4, **parallel})).totals()["max_allocated"].high

    limited, free = high(limit_all_gathers=True), high(limit_all_gathers=False)
    assert free > limited
    assert high(limit_all_gathers=False, reshard_after_forward=False) == high(limit_all_gathers=True, reshard_after_forward=False)


def test_stating_what_was_assumed_never_widens_and_no_range_reaches_below_what_is_resident() -> None:
    bare = Job().but(
        model={"name": "meta-llama/Llama-3.1-8B"}, method={"kind": "lora"}, hardware={"gpu": "a100-80gb"}, batch={"micro_batch": 2, "seq_len": 4096}
    )
    whole = estimate(resolve(bare)).totals()["max_allocated"]
    resident = estimate(resolve(bare)).by_part().get("weights", 0)
    assert whole.low > resident
    for stated in ({"objective": "sft"}, {"method": {"rank": 8}}, {"precision": {"compute": "bf16"}}, {"precision": {"weights": "bf16"}}):
        found = estimate(resolve(bare.but(**stated))).totals()["max_allocated"]
        assert found.low > resident and found.low >= 0.99 * whole.low and found.high / found.expected <= 1.01 * whole.high / whole.expected, stated


def test_a_loop_of_ones_own_may_compile_the_loss_too_and_make_the_embedding_a_unit() -> None:
    def low(name: str, compiled: bool, **parallel: Any) -> int:
        made = job(batch={"micro_batch": 32, "seq_len": 2048}, activations={"compile": compiled}, framework={"name": name}, parallel=parallel)
        return estimate(made).totals()["max_allocated"].low

    assert low("custom", True) < 0.8 * low("custom", False)
    assert low("torchtune", True) > 0.9 * low("torchtune", False)
    sharded = {"strategy": "fsdp2", "shard": 8}
    assert low("custom", False, **sharded) < low("custom", False, **sharded, wrap={"embeddings": "root"})


def test_an_encoder_decoders_shorter_sequence_may_need_less() -> None:
    t5 = {"model_type": "t5", "d_model": 512, "d_ff": 1024, "num_layers": 6, "num_heads": 8, "d_kv": 64, "vocab_size": 32128}
    plain, both = (
        estimate(job(batch={"micro_batch": 8, "seq_len": 1024, "packed": False}, activations={"checkpointing": "none"}).but(model={"config": config}))
        for config in ({**job().model.config, "num_hidden_layers": 12}, t5)
    )
    ratio = [found.totals()["max_allocated"].low / found.totals()["max_allocated"].expected for found in (plain, both)]
    assert ratio[1] < 0.7 * ratio[0]


def test_megatrons_dropouts_are_not_a_models_and_vary() -> None:
    def high(**config: Any) -> int:
        made = job(config, activations={"attention": "te-unfused", "checkpointing": "none", "loss": "vocab-parallel"}, framework={"name": "megatron-lm"})
        return estimate(made.but(model={"source": "megatron"}, parallel={"strategy": "megatron"})).totals()["max_allocated"].high

    assert high() > 1.1 * high(attention_dropout=0.0, hidden_dropout=0.0)
