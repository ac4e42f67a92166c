"""A second try judges a cause by an estimate only where the estimate has the cause in it."""

from __future__ import annotations

import pytest

from advisor.deviation import foreign
from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.rules.observing import BY_ESTIMATE, EXPECTED, chance
from advisor.run import resolve

SMALL = resolve(
    read_job(
        "version: 1\nmodel: {name: Qwen/Qwen2.5-0.5B}\nmethod: {kind: full}\nprecision: {weights: bf16, compute: bf16}\nbatch: {micro_batch: 8, seq_len: 512}\n"
        "hardware: {gpu: h100-80gb, gpus_per_node: 1}\n"
    )
)


@pytest.mark.parametrize("cause", ["other-process", "memory-cap", "host-memory", "ranks-on-one-gpu"])
def test_a_cause_that_no_estimate_shows_is_judged_by_its_nature(cause: str) -> None:
    assert chance("seen-batch-1-fails", cause, SMALL, Evidence()) == EXPECTED  # its estimate would fit, and has no such cause in it


def test_what_the_run_itself_shows_and_what_others_hold_are_judged_by_the_estimate() -> None:
    assert chance("seen-batch-1-fails", "activations", SMALL, Evidence()) == pytest.approx(1 - BY_ESTIMATE)
    beside = SMALL.deviating(foreign(78 << 30, cause="other-process"))
    assert chance("seen-batch-1-fails", "other-process", beside, Evidence()) == pytest.approx(BY_ESTIMATE)
