"""What rests on a newest version's default weighs less than what is known; a default that never changed does not."""

from __future__ import annotations

import pytest

from advisor.evidence import Evidence
from advisor.job import read_job
from advisor.rules.engine import UNCERTAIN, judge
from advisor.rules.situation import uncertain
from advisor.run import Run, resolve

HEAD = "version: 1\nmodel: {name: meta-llama/Llama-3.1-8B}\nmethod: {kind: full}\nbatch: {micro_batch: 8, seq_len: 4096}\n"


def _run(framework: str) -> Run:
    return resolve(read_job(HEAD + f"framework: {framework}\n"))


@pytest.mark.parametrize(
    ("framework", "path", "expected"),
    [
        ("{name: trl}", "activations.loss", True),  # chunked since 1.7 only
        ("{name: trl, versions: {trl: 1.8.0, transformers: 5.0.0}}", "activations.loss", False),
        ("{name: hf-trainer}", "activations.checkpointing", False),  # off in every version
        ("{name: hf-trainer}", "precision.weights", True),  # fp32 before transformers 5
        ("{name: hf-trainer, versions: {transformers: 5.1.0}}", "precision.weights", False),
        ("{name: hf-trainer}", "batch.seq_len", False),  # stated
    ],
)
def test_a_default_is_uncertain_where_versions_differ_and_none_is_known(framework: str, path: str, expected: bool) -> None:
    assert uncertain(_run(framework), path) is expected


def _weight(framework: str) -> float:
    run = _run(framework)
    assert run.job.activations.loss == "chunked"
    findings = judge(run, Evidence(marks=("logits-frame", "logits-fused"))).findings
    return next(s.weight for f in findings if f.cause == "logits" for s in f.evidence if s.mark == "logits-fused")


def test_the_engine_halves_what_rests_on_it() -> None:
    known = _weight("{name: trl, versions: {trl: 1.8.0, transformers: 5.0.0}}")
    assert _weight("{name: trl}") == pytest.approx(UNCERTAIN * known)
