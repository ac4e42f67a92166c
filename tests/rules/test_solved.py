"""Logits for a solved number of tokens: told strongly only where something restricts the tokens."""

from __future__ import annotations

import pytest

from advisor.job import read_job
from advisor.reading import read
from advisor.rules import engine
from advisor.rules.samples import job, oom
from advisor.run import resolve


@pytest.mark.parametrize(
    ("batch", "mark"),
    [
        ("{packed: false}", "logits-solved-free"),
        ("{packed: false, micro_batch: 1}", "logits-solved-free"),
        ("{packed: false, micro_batch: 4}", "logits-solved"),
    ],
)
def test_a_match_with_nothing_known_counts_less(batch: str, mark: str) -> None:
    evidence = read([("error.txt", oom("2.94 GiB", allocated=70.0, free=1.5))]).evidence  # 4 x 3,072 tokens x 128,256 x 2
    run = resolve(read_job(job(batch=batch)), evidence)
    logits = next(f for f in engine.judge(run, evidence).findings if f.cause == "logits")
    weights = {s.mark: s.weight for s in logits.evidence if s.mark.startswith("logits-solved")}
    assert list(weights) == [mark]
    assert weights[mark] == (2.5 if mark == "logits-solved" else 1.6)
