"""Plans: they fit as they say, start at the run as it is, keep the order of the tiers, and end where copies suffice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import deviation as dev
from advisor.arithmetic import estimate
from advisor.evidence import Evidence, Failure
from advisor.job import read_job
from advisor.planner.constraints import compatible
from advisor.planner.measuring import Bench
from advisor.planner.offering import options
from advisor.planner.searching import SAME_TIME, cost, free, search
from advisor.planning import Constraints, layouts, max_micro_batch, max_seq_len, plan, which_cards
from advisor.report import Finding, Plan, Step
from advisor.run import Run, resolve
from advisor.techniques import all_techniques
from tests.planner.laws import in_order
from tests.techniques import zoo


def run(**sections: Any) -> Run:
    job: dict[str, Any] = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "objective": "sft",
        "batch": {"micro_batch": 4, "seq_len": 4096}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 1}, "framework": {"name": "trl"},
    }  # fmt: skip
    for name, content in sections.items():
        job[name] = {**job.get(name, {}), **content} if isinstance(content, dict) else content
    return resolve(read_job(job))


def finding(cause: str, tier: str, remedies: Sequence[str]) -> Finding:
    return Finding(cause, tier, cause, 0.9, None, (), tuple(remedies))


def expected_need(r: Run) -> int:
    ledger = estimate(r)
    return ledger.expected_totals()["device_used"].expected


def fitting(step: Step) -> bool:
    assert step.run is not None
    assert step.run.usable is not None
    return expected_need(step.run) <= step.run.usable[0]


def check(made: Plan, start: Run) -> None:
    """What must hold of every plan."""
    for step in made.steps:
        assert step.why
        assert step.before_bytes is not None
    if made.steps:
        assert made.steps[0].before_bytes == estimate(start).peak().bytes
    for before, after in zip(made.steps, made.steps[1:], strict=False):
        assert before.run is not None
        assert after.before_bytes == estimate(before.run).peak().bytes
    if made.fits and made.steps and start.usable is not None:
        assert fitting(made.steps[-1])
        assert made.steps[-1].fits_after
        assert all(not step.fits_after for step in made.steps[:-1])


@pytest.mark.parametrize("number", range(9))
def test_plans_of_the_zoo(number: int) -> None:
    start = zoo.written()[number]
    made = plan(start)
    check(made, start)
    assert in_order(made, start)
    assert made.summary


@given(
    micro=st.sampled_from([1, 2, 3, 8, 16]),
    seq_len=st.sampled_from([512, 2048, 8192]),
    kind=st.sampled_from(["full", "lora"]),
    gpu=st.sampled_from(["rtx4090-24gb", "a100-40gb", "h100-80gb"]),
    ranks=st.sampled_from([1, 4, 8]),
    weights=st.sampled_from(["fp32", "bf16"]),
)
@settings(max_examples=15, deadline=None)
def test_the_last_step_fits_and_the_step_before_does_not(micro: int, seq_len: int, kind: str, gpu: str, ranks: int, weights: str) -> None:
    parallel = {"strategy": "ddp" if ranks > 1 else "none", "replicate": ranks}
    start = run(
        method={"kind": kind}, batch={"micro_batch": micro, "seq_len": seq_len}, hardware={"gpu": gpu, "gpus_per_node": ranks}, parallel=parallel,
        precision={"weights": weights},
    )  # fmt: skip
    made = plan(start)
    check(made, start)
    assert in_order(made, start)
    assert made.fits or made.irreducible
    if any(step.tier == "hardware" for step in made.steps):
        assert made.irreducible, "hardware only where nothing else is enough"


def test_no_hardware_while_a_copy_remains() -> None:
    start = run(method={"kind": "lora"}, batch={"micro_batch": 1}).deviating(dev.extra("weights", dtype="fp32", times=2, cause="duplicate-layout"))
    made = plan(start)
    check(made, start)
    assert [s.technique for s in made.steps] == ["drop-duplicate-layout"]
    assert "hidden the fault" in made.summary


def test_the_first_cause_is_cured_first() -> None:
    start = run(method={"kind": "lora"}, batch={"micro_batch": 16}, activations={"checkpointing": "none"})
    made = plan(start, causes=[finding("logits", "batch", ["fused-linear-loss", "chunked-loss"]), finding("activations", "batch", ["gradient-checkpointing"])])
    check(made, start)
    assert made.steps[0].technique == "fused-linear-loss"


def test_an_action_cures_a_cause_of_triage() -> None:
    start = run(method={"kind": "lora"}, batch={"micro_batch": 1}).deviating(dev.foreign(70 << 30, cause="other-process"))
    made = plan(start, causes=[finding("other-process", "triage", ["free-other-process"])])
    assert [s.technique for s in made.steps] == ["free-other-process"]
    assert not made.steps[0].estimated
    assert made.fits


def test_the_hardware_cause_is_never_cured_first() -> None:
    start = run(batch={"micro_batch": 8}, hardware={"gpu": "rtx4090-24gb"})
    made = plan(start, causes=[finding("capacity", "hardware", ["larger-gpu", "more-gpus"])])
    assert made.steps[0].tier != "hardware"


def test_an_unknown_card_is_planned_against_the_capacity_of_the_error() -> None:
    start = run(hardware={"gpu": None}, method={"kind": "lora"}, batch={"micro_batch": 8}, activations={"checkpointing": "none"})
    assert plan(start).fits is None
    failure = Failure("gpu-memory", "error.txt:1", "CUDA out of memory", capacity_bytes=24 << 30)
    made = plan(start, evidence=Evidence(failures=(failure,)))
    assert made.fits
    assert made.steps[-1].run is not None
    assert expected_need(made.steps[-1].run) <= 24 << 30


def test_a_run_with_room_is_offered_speed() -> None:
    made = plan(run(method={"kind": "lora"}, batch={"micro_batch": 1, "seq_len": 2048, "gradient_accumulation": 16}, activations={"checkpointing": "full"}))
    assert made.fits
    assert made.steps == ()
    offered = {step.technique for step in made.alternatives if step.tier == "spare"}
    assert {"less-checkpointing", "larger-micro-batch"} <= offered
    assert all(step.fits_after for step in made.alternatives if step.tier == "spare")


def test_constraints() -> None:
    start = run(batch={"micro_batch": 4}, hardware={"gpu": "a100-40gb"})
    for made in (
        plan(start, allow=Constraints(keep_full_training=True)),
        plan(start, allow=Constraints(exclude=frozenset({"lora", "qlora", "dora", "galore"}))),
    ):
        assert not {"lora", "qlora", "dora", "galore"} & {s.technique for s in made.steps}
    exact = plan(start, allow=Constraints(keep_exact=True))
    assert all(s.exact for s in exact.steps if s.tier != "hardware")
    few = plan(start, allow=Constraints(most_changes=1))
    assert len([s for s in few.steps if s.tier in ("shard", "batch")]) <= 1


def test_a_margin_is_left_free() -> None:
    start = run(method={"kind": "lora"}, batch={"micro_batch": 8}, activations={"checkpointing": "none"})
    margin = 10 << 30
    made = plan(start, margin_bytes=margin)
    last = made.steps[-1].run
    assert last is not None
    assert last.usable is not None
    ledger = estimate(last)
    assert ledger.expected_totals()["device_used"].expected - ledger.outside("allocator") + margin <= last.usable[0]


def test_nothing_fits_names_what_is_irreducible_and_the_smallest_hardware() -> None:
    start = run(model={"name": "meta-llama/Llama-3.1-70B"}, objective="pretrain", batch={"micro_batch": 1}, hardware={"gpu": "rtx4090-24gb"})
    made = plan(start)
    assert made.irreducible
    assert "usable" in made.irreducible


def test_solved_numbers_are_the_largest_that_fit() -> None:
    start = run(method={"kind": "lora"}, activations={"checkpointing": "full"})
    assert start.usable is not None
    capacity = start.usable[0]
    micro, tokens = max_micro_batch(start, capacity), max_seq_len(start, capacity)
    assert micro is not None
    assert tokens is not None

    def need(**batch: int) -> int:
        ledger = estimate(start.but(batch=batch))
        return ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")

    assert need(micro_batch=micro) <= capacity < need(micro_batch=micro + 1)
    assert need(seq_len=tokens) <= capacity < need(seq_len=tokens + 128)


def test_which_cards_are_in_order_and_consistent() -> None:
    found = which_cards(run(method={"kind": "lora"}, batch={"micro_batch": 1}))
    verdicts = {card: verdict for card, verdict, _ in found}
    assert verdicts["h100-80gb"] == "fits"
    assert verdicts["t4-16gb"] == "ooms"
    assert len(found) > 40


def test_every_alternative_is_one_change_from_the_run_as_it_is() -> None:
    start = run(batch={"micro_batch": 8})
    made = plan(start)
    for step in made.alternatives:
        assert step.before_bytes == estimate(start).peak().bytes
        assert step.technique in all_techniques()


def test_host_memory_bounds_what_is_offloaded() -> None:
    start = run(model={"name": "meta-llama/Llama-3.1-8B"}, batch={"micro_batch": 1}, hardware={"gpu": "rtx4090-24gb", "host_memory_gib": 16.0})
    made = plan(start)
    assert not {"offload-optimizer", "offload-parameters"} & {s.technique for s in made.steps if s.fits_after}


def test_layouts_keep_gpus_and_samples() -> None:
    start = run(
        model={"name": "meta-llama/Llama-3.1-70B"}, objective="pretrain", batch={"micro_batch": 1, "seq_len": 8192, "gradient_accumulation": 16},
        parallel={"strategy": "megatron-distributed", "shard": 64}, hardware={"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 8},
        framework={"name": "megatron-lm"},
    )  # fmt: skip
    found = layouts(start)
    assert found
    assert found[0].fits
    for layout in found:
        assert layout.run.world == start.world
        assert layout.tensor * layout.context * layout.pipeline * layout.data == start.world
        p, b = layout.run.job.parallel, layout.run.job.batch
        passes = (p.microbatches or 1) if layout.pipeline > 1 else (b.gradient_accumulation or 1)
        assert layout.data * passes * (b.micro_batch or 1) == 64 * 16
    fitting_ones = [x for x in found if x.fits]
    assert all(a.seconds <= b.seconds * 1.03 for n, a in enumerate(fitting_ones) for b in fitting_ones[n:]), (
        "fastest first; what takes as long by how much it cuts"
    )
    assert layouts(run(framework={"name": "unsloth"})) == []


@pytest.mark.parametrize(
    "start",
    [
        run(method={"kind": "lora"}, batch={"micro_batch": 8}, activations={"checkpointing": "none"}),
        run(batch={"micro_batch": 2}, parallel={"strategy": "ddp", "replicate": 4}, hardware={"gpu": "l40s-48gb", "gpus_per_node": 4}),
        run(batch={"micro_batch": 2, "gradient_accumulation": 8}, framework={"name": "hf-trainer"}),
    ],
)
def test_no_cheaper_set_was_missed(start: Run) -> None:
    """Against every set of up to three changes of the stage in which the plan ended."""
    bench = Bench(start, lambda r: r.usable[0] if r.usable else None, None, Constraints(), budget=10_000)
    base = bench.measure(())
    assert base is not None
    first = base
    for tier in ("copies", "fallback"):
        base = free(bench, base, tier)
    stage = next((tiers for tiers in (frozenset({"shard"}), frozenset({"shard", "batch"})) if search(bench, base, first, tiers, heavy=0, altering=0)), None)
    assert stage is not None
    found = search(bench, base, first, stage, heavy=0, altering=0)
    cheapest = cost(found[0], first)[1]
    singles = options(bench, base, stage, heavy=0, altering=0)
    for size in (1, 2, 3):
        for chosen in combinations(singles, size):
            names = frozenset(i for i, _ in chosen)
            if len(names) < size or not compatible(names | base.ids):
                continue
            tried = bench.measure((*base.changes, *chosen))
            if tried is not None and bench.fits(tried):
                assert cost(tried, first)[1] >= cheapest - SAME_TIME - 1e-9, chosen


def test_the_frontier_trades_memory_for_time() -> None:
    frontier = plan(run(batch={"micro_batch": 8}, hardware={"gpu": "l40s-48gb"})).frontier
    assert len(frontier) > 2
    assert [p.peak_bytes for p in frontier] == sorted(p.peak_bytes for p in frontier)
    ratios = [p.step_time_ratio for p in frontier]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"batch": {"seq_len": None}, "framework": {"name": "custom"}}, "before the sequence length is known"),
        ({"batch": {"seq_len": None, "micro_batch": None}, "framework": {"name": "custom"}}, "before the micro batch and the sequence length are known"),
        ({"model": {"name": "nobody/knows-this"}}, "before the model is known"),
    ],
)
def test_only_what_is_missing_is_asked_for(sections: dict[str, Any], says: str) -> None:
    assert plan(run(**sections)).summary == f"How much a change saves cannot be told {says}."


def test_a_plan_that_costs_nothing_does_not_say_that_it_costs() -> None:
    free_one = run(
        precision={"weights": "bf16"}, parallel={"strategy": "zero1", "shard": 8}, batch={"micro_batch": 2}, hardware={"gpus_per_node": 8},
        framework={"name": "hf-trainer"}, activations={"checkpointing": "none"},
    )  # fmt: skip
    made = plan(free_one)
    assert made.fits and [s.technique for s in made.steps] == ["fused-linear-loss"] and made.steps[0].exact
    assert (made.steps[0].step_time_ratio or 2) <= 1
    assert "at no cost in time or results" in made.summary and "was not enough" not in made.summary
    costly = plan(run(precision={"weights": "bf16"}, batch={"micro_batch": 1}, hardware={"gpu": "a100-40gb"}))
    assert any((s.step_time_ratio or 0) > 1 for s in costly.steps) and "at no cost" not in costly.summary
