"""Over random jobs: the last step fits as it says, the step before does not, and no cheaper single change of the tier was missed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.constraints import ORDER, WEIGHT
from advisor.planner.measuring import Bench
from advisor.planner.searching import cost
from advisor.planning import Constraints, plan
from advisor.run import Run, resolve
from advisor.techniques import TIERLESS, all_techniques

MODELS = ("meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "google/gemma-2-9b")


@st.composite
def runs(draw: st.DrawFn) -> Run:
    ranks = draw(st.sampled_from([1, 2, 8]))
    strategy = "none" if ranks == 1 else draw(st.sampled_from(["ddp", "zero2", "zero3", "fsdp2"]))
    group = {"replicate": ranks} if strategy == "ddp" else {"shard": ranks}
    job: dict[str, Any] = {
        "version": 1, "model": {"name": draw(st.sampled_from(MODELS))}, "method": {"kind": draw(st.sampled_from(["full", "lora"]))}, "objective": "sft",
        "batch": {"micro_batch": draw(st.sampled_from([1, 2, 6, 16])), "seq_len": draw(st.sampled_from([1024, 4096, 16384])),
                  "gradient_accumulation": draw(st.sampled_from([1, 4]))},
        "activations": {"checkpointing": draw(st.sampled_from(["none", "full"]))}, "parallel": {"strategy": strategy, **group},
        "hardware": {"gpu": draw(st.sampled_from(["rtx4090-24gb", "l40s-48gb", "a100-80gb", "h200-141gb"])), "gpus_per_node": ranks},
        "framework": {"name": draw(st.sampled_from(["trl", "hf-trainer", "axolotl", "llama-factory"]))},
    }  # fmt: skip
    return resolve(read_job(job))


def needs(run: Run) -> int:
    ledger = estimate(run)
    return ledger.expected_totals()["device_used"].expected - ledger.outside("allocator")


@given(start=runs())
@settings(max_examples=20, deadline=None)
def test_the_plan_holds(start: Run) -> None:
    made = plan(start)
    assert start.usable is not None
    if not made.steps or not made.fits:
        return
    last = made.steps[-1].run
    assert last is not None
    assert last.usable is not None
    assert needs(last) <= last.usable[0]
    assert made.steps[-1].fits_after
    assert not any(step.fits_after for step in made.steps[:-1])
    order = [ORDER[step.tier] for step in made.steps]
    assert order == sorted(order)
    _no_cheaper_single(start, [s.technique for s in made.steps], max(order))


def _no_cheaper_single(start: Run, chosen: list[str], tier: int) -> None:
    """A plan of several changes, or of a heavy one, is made only where no lighter single change of its tiers would do at less cost."""
    bench = Bench(start, lambda r: r.usable[0] if r.usable else None, None, Constraints(), budget=10_000)
    base = bench.measure(())
    assert base is not None
    end = bench.measure([(name, chosen.count(name)) for name in dict.fromkeys(chosen)])
    if end is None or any(all_techniques()[n].tier == "hardware" for n in chosen):
        return  # repeated or laid out otherwise: other tests look at those
    heaviest = max(WEIGHT.get(n, 0) for n in chosen)
    for name, technique in all_techniques().items():
        if not technique.estimated or name in TIERLESS or ORDER[technique.tier] > tier or WEIGHT.get(name, 0) > heaviest:
            continue
        single = bench.measure([(name, 1)])
        if single is not None and bench.fits(single) and not (single.alters_learning and not end.alters_learning):
            assert cost(single, base)[:2] >= cost(end, base)[:2] or abs(cost(single, base)[1] - cost(end, base)[1]) <= 0.05 + 1e-9, name
