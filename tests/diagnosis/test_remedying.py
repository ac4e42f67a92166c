"""The cure of a clearly first cause stands first, with or without an estimate."""

from __future__ import annotations

from advisor.diagnosis.remedying import with_cures
from advisor.job import read_job
from advisor.report import Finding, Plan, Step
from advisor.rules.engine import all_rules
from advisor.run import Run, resolve

RUN = resolve(
    read_job(
        "version: 1\nmodel: {name: Qwen/Qwen2.5-7B}\nmethod: {kind: full}\nbatch: {micro_batch: 4, seq_len: 2048}\nparallel: {strategy: ddp, shard: 8}\n"
        "hardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
    )
)
RULES = {rule.id: rule for rule in all_rules()}


def _finding(cause: str, confidence: float) -> Finding:
    rule = RULES[cause]
    return Finding(cause, rule.tier, rule.title, confidence, None, (), rule.remedies, None)


def _step(name: str, run: Run) -> Step:
    return Step(
        technique=name, title=name, tier="batch", estimated=True, before_bytes=2, after_bytes=1, step_time_ratio=None, exact=True, settings={}, why="", run=run
    )


PLAN = Plan(steps=(_step("smaller-micro-batch", RUN), _step("shorter-sequence", RUN)))


def test_a_clearly_first_cause_keeps_its_remedy_in_front() -> None:
    made = with_cures(PLAN, (_finding("save-gather", 0.7), _finding("activations", 0.1)), RUN)
    assert [s.technique for s in made.steps] == ["sharded-save", "smaller-micro-batch", "shorter-sequence"]
    assert not made.steps[0].estimated and made.steps[0].after_bytes is None


def test_a_second_that_is_close_leaves_the_order() -> None:
    made = with_cures(PLAN, (_finding("vision-tokens", 0.5), _finding("activations", 0.4)), RUN)
    assert made.steps == PLAN.steps  # vision-tokens names the smaller micro batch as well
