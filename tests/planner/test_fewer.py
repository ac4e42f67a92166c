"""The fewest cards that would hold a run: re-estimated, no smaller count does, and samples of a step stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor import cli
from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.constraints import Constraints
from advisor.planner.fewer import Fewer, fewer_cards, on_fewer
from advisor.planner.searching import LINK_BOUND
from advisor.planning import plan
from advisor.run import Run, resolve
from advisor.speed import step_time

JOBS = Path(__file__).resolve().parents[1] / "jobs"


def run(cards: int = 8, **sections: Any) -> Run:
    job: dict[str, Any] = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
        "batch": {"micro_batch": 4, "seq_len": 4096, "gradient_accumulation": 1}, "activations": {"checkpointing": "full", "attention": "flash-2"},
        "framework": {"name": "trl"}, "hardware": {"gpu": "h100-80gb", "gpus_per_node": min(8, cards), "nodes": max(1, cards // 8)},
        "parallel": {"strategy": "fsdp2", "shard": cards},
    }  # fmt: skip
    for name, content in sections.items():
        job[name] = {**job[name], **content}
    return resolve(read_job(job))


def samples(one: Run) -> int:
    p, b = one.job.parallel, one.job.batch
    return (b.micro_batch or 1) * (b.gradient_accumulation or 1) * (p.shard or 1) * (p.replicate or 1) // (p.context or 1)


def answers(start: Run, **how: Any) -> tuple[Fewer, ...]:
    found = fewer_cards(start, plan(start, **how), **how)
    assert found is not None
    return found


@pytest.mark.parametrize("start", [run(), run(6, hardware={"gpu": "l40s-48gb"}), run(16, batch={"micro_batch": 16}, activations={"checkpointing": "none"})])
def test_every_answer_fits_as_it_says_and_no_smaller_count_does(start: Run) -> None:
    found = answers(start)
    assert found
    for answer in found:
        assert answer.cards < answer.of == start.world == (start.job.hardware.gpus_per_node or 1) * (start.job.hardware.nodes or 1)
        assert answer.run.world == answer.cards
        ledger = estimate(answer.run)
        used = ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")
        assert used == answer.used_bytes <= answer.usable_bytes
        assert samples(answer.run) == samples(start)
    last = found[-1]
    assert not LINK_BOUND & set(last.changes)
    for count in (n for n in range(1, last.cards) if start.world % n == 0):
        smaller = on_fewer(start, count)
        assert smaller is not None
        made = plan(smaller, allow=Constraints(keep_hardware=True, exclude=LINK_BOUND))
        assert not made.fits or any(step.alters_learning for step in made.steps)


def test_the_time_is_of_the_same_samples_against_the_run_as_its_plan_leaves_it() -> None:
    start = run(batch={"micro_batch": 16}, activations={"checkpointing": "none"})
    made = plan(start)
    assert made.fits and made.steps and made.steps[-1].run is not None
    found = fewer_cards(start, made)
    assert found
    whole = step_time(made.steps[-1].run).seconds_per_token
    assert found[0].ratio == pytest.approx(step_time(found[0].run).seconds_per_token / whole)
    assert found[0].card_hours == pytest.approx(found[0].ratio * found[0].cards / 8)


def test_replicas_that_fit_alone_need_no_change() -> None:
    start = run(method={"kind": "lora"}, parallel={"strategy": "ddp", "shard": 1, "replicate": 8}, batch={"micro_batch": 1})
    (only,) = answers(start)
    assert (only.cards, only.changes) == (1, ())
    assert 4 < only.ratio <= 8.01
    assert only.run.job.parallel.strategy == "none" and only.run.job.batch.gradient_accumulation == 8


def test_limits_hold_here_too() -> None:
    free = answers(run())
    assert any(answer.changes for answer in free)
    bound = answers(run(), allow=Constraints(no_new_dependency=True, exclude=LINK_BOUND))
    assert bound[0].cards >= free[-1].cards
    assert not {"eight-bit-optimizer", *LINK_BOUND} & {name for answer in bound for name in answer.changes}


def test_groups_are_kept() -> None:
    start = run(64, framework={"name": "megatron-lm"}, parallel={"strategy": "megatron-distributed", "tensor": 8, "pipeline": 2, "shard": 4})
    assert on_fewer(start, 8) is None
    half = on_fewer(start, 32)
    assert half is not None and (half.job.parallel.tensor, half.job.parallel.pipeline, half.job.parallel.shard, half.job.hardware.nodes) == (8, 2, 2, 4)


def test_no_answer_without_the_question() -> None:
    one = run(1, parallel={"strategy": "none"}, method={"kind": "lora"}, batch={"micro_batch": 1})
    assert fewer_cards(one, plan(one)) is None
    contradicting = run(hardware={"gpus_per_node": 4})
    assert fewer_cards(contradicting, plan(contradicting)) is None
    large = run(model={"name": "meta-llama/Llama-3.1-405B"})
    made = plan(large, allow=Constraints(keep_hardware=True, exclude=LINK_BOUND))
    assert not made.fits and fewer_cards(large, made) is None


def test_it_is_printed_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    job = str(JOBS / "j3.yaml")
    cli.main(["plan", job, "--json"])
    assert json.loads(capsys.readouterr().out)["fewer_cards"] is None
    cli.main(["plan", job, "--json", "--fewer"])
    found = json.loads(capsys.readouterr().out)["fewer_cards"]
    assert found and found[0]["of"] == 8 and {"cards", "changes", "step_time_ratio", "card_hours_ratio", "settings"} <= found[0].keys()
    cli.main(["plan", job, "--fewer"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"It fits on {found[0]['cards']} of the 8 cards" in said and "times as long" in said
    query = "v=1&model.name=meta-llama/Llama-3.1-8B&method.kind=lora&batch.micro_batch=2&batch.seq_len=2048&hardware.gpu=h100-80gb&hardware.gpus_per_node=8"
    cli.main(["diagnose", f"{query}&parallel.strategy=ddp&parallel.replicate=8", "--json", "--fewer"])
    assert json.loads(capsys.readouterr().out)["fewer_cards"][0]["cards"] == 1
    assert cli.main(["plan", job, "--fewer", "--limits"]) == 2


def test_a_run_on_one_card_says_that_there_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plan", str(JOBS / "j1.yaml"), "--fewer", "--json"])
    out, error = capsys.readouterr()
    assert json.loads(out)["fewer_cards"] is None
    assert "several cards" in error
