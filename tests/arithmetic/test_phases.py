"""Rollout, hand-over, evaluation, saving, resuming and merging, each where the job has it."""

from __future__ import annotations

from advisor.arithmetic import estimate
from advisor.units import GIB
from tests.arithmetic.jobs import job

ENGINE = {"engine": "vllm", "placement": "colocated", "memory_fraction": 0.3, "fraction_of": "total", "weights": "bf16", "tensor": 1, "sleep": "none"}


def test_an_awake_engine_takes_its_share_of_the_card_in_every_phase() -> None:
    ledger = estimate(job(objective="grpo", rollout=ENGINE))
    engine = {p: b for p, b in ledger.by_part("step.update").items() if p.startswith("rollout")}
    assert abs(sum(engine.values()) - 0.3 * 79.15 * GIB) < 0.1 * GIB


def test_a_sleeping_engine_leaves_only_its_graphs() -> None:
    ledger = estimate(job(objective="grpo", rollout={**ENGINE, "sleep": "level-1"}))
    assert {p for p in ledger.by_part("step.update") if p.startswith("rollout")} == {"rollout-graphs"}
    assert any(h.device == "host" and h.part == "rollout-weights" for h in ledger.holdings)


def test_waking_all_at_once_meets_the_gathered_weights() -> None:
    sharded = {"parallel": {"strategy": "zero3", "shard": 8}, "objective": "grpo"}
    staged = estimate(job(**sharded, rollout={**ENGINE, "sleep": "level-2", "wake": "staged"}))
    at_once = estimate(job(**sharded, rollout={**ENGINE, "sleep": "level-2", "wake": "at-once", "sync": "everything"}))
    assert at_once.at("sync") > staged.at("sync") + 10 * GIB


def test_a_reference_is_divided_only_where_the_strategy_divides_parameters() -> None:
    for strategy, ranks in (("zero2", 1), ("zero3", 8), ("fsdp1", 8)):
        ledger = estimate(job(objective="dpo", reference="copy", parallel={"strategy": strategy, "shard": 8}))
        whole = estimate(job(objective="dpo", reference="copy")).by_part("step.update")["reference"]
        assert abs(ledger.by_part("step.update")["reference"] - whole / ranks) < 4096


def test_sections_add_their_phases() -> None:
    ledger = estimate(
        job(eval={"micro_batch": 8, "accumulate": "device", "keeps": "logits"}, save={"format": "full", "gather": "every-rank"}, resume={"map": "device"})
    )
    phases = ledger.phases()
    assert {"eval", "save", "resume"} <= set(phases)
    assert phases["resume"] > phases["save"]


def test_offloaded_state_is_host_memory() -> None:
    here = estimate(job(parallel={"strategy": "zero3", "shard": 2}))
    away = estimate(job(parallel={"strategy": "zero3", "shard": 2}, offload={"optimizer": "cpu", "parameters": "cpu"}))
    assert away.at("step") < here.at("step")
    assert away.host_peak() > here.by_part("step.update")["optimizer"]


def test_a_device_map_is_counted_on_its_fullest_card() -> None:
    one = estimate(job(batch={"micro_batch": 1, "seq_len": 128}))
    two = estimate(job(batch={"micro_batch": 1, "seq_len": 128}, parallel={"device_map": [0.5, 0.5]}))
    assert two.peak().bytes < 0.7 * one.peak().bytes


def test_evaluation_caches_keys_and_values_until_version_5() -> None:
    """transformers switches the cache off where a checkpointed model trains; model.eval() leaves it on, unless the Trainer (since 5) has switched it off."""
    rows = {"eval": {"micro_batch": 8, "keeps": "argmax"}}
    old, new, off = (
        estimate(job(**rows, framework={"versions": {"transformers": version}, **more}))
        for version, more in (("4.48.1", {}), ("5.0.0", {}), ("4.48.1", {"use_cache": False}))
    )
    # 6 layers x 8 sequences x 512 tokens x keys and values of 4 heads of 64 elements, 2 bytes
    assert old.by_part("eval.forward")["decode-cache"] == 6 * 8 * 512 * 2 * 4 * 64 * 2
    assert "decode-cache" not in new.by_part("eval.forward")
    assert "decode-cache" not in off.by_part("eval.forward")


def test_an_evaluation_of_more_rows_finds_few_blocks_in_the_cache() -> None:
    small, large = (estimate(job(eval={"micro_batch": rows, "keeps": "argmax"})) for rows in (2, 16))
    beside = large.totals()["max_reserved"].expected - large.totals()["max_allocated"].expected
    assert beside > small.totals()["max_reserved"].expected - small.totals()["max_allocated"].expected
