"""What ticked changes come to: all steps of a plan ticked are the plan, whatever it repeats, orders or lays out."""

from __future__ import annotations

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.planner.together import apply_together
from advisor.planning import plan
from advisor.report import Plan
from advisor.run import Run, resolve
from tests.planner.random_jobs import random_run

SEEDS = 20


def halves_twice() -> tuple[Run, Plan]:
    """Four sequences on one card, of which the plan leaves one."""
    job = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "full"}, "precision": {"weights": "bf16", "compute": "bf16"},
        "batch": {"micro_batch": 4, "seq_len": 4096}, "activations": {"checkpointing": "none"}, "hardware": {"gpu": "a100-80gb"},
    }  # fmt: skip
    run = resolve(read_job(job))
    return run, plan(run)


def test_a_step_is_made_as_often_as_the_plan_makes_it() -> None:
    run, made = halves_twice()
    step = next(s for s in made.steps if s.technique == "smaller-micro-batch")
    assert step.times == 2
    alone = apply_together(run, ["smaller-micro-batch"], made)
    assert alone is not None and alone.run.job.batch.micro_batch == 1
    offered = apply_together(run, ["smaller-micro-batch"])
    assert offered is not None and offered.run.job.batch.micro_batch == 2  # beside a plan it stands for one halving


def test_all_steps_ticked_are_the_plan() -> None:
    repeated = 0
    for seed in range(SEEDS):
        run = random_run(seed)
        made = plan(run)
        steps = [s for s in made.steps if s.estimated]
        if not steps:
            continue
        together = apply_together(run, [s.technique for s in steps], made)
        assert together is not None and together.refused == (), seed
        assert together.ledger.peak().bytes == steps[-1].after_bytes, (seed, [s.technique for s in steps])
        repeated += any(s.times > 1 for s in steps)
    assert repeated, "none of them repeats a change: the law has not been tried"


def test_nothing_ticked_is_the_run_itself() -> None:
    run, made = halves_twice()
    together = apply_together(run, [], made)
    assert together is not None and together.run is run and together.ledger == estimate(run)


def test_a_gap_is_not_jumped() -> None:
    """Without the plan's first step, what follows it is made on the run as it is."""
    run, made = halves_twice()
    names = [s.technique for s in made.steps if s.estimated]
    assert len(names) > 1
    without = apply_together(run, names[1:], made)
    whole = apply_together(run, names, made)
    assert without is not None and whole is not None and without.ledger.peak().bytes > whole.ledger.peak().bytes
