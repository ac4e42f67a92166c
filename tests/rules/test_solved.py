"""Logits for a solved number of tokens: told strongly only where something restricts the tokens."""

from __future__ import annotations

import pytest

from advisor.job import read_job
from advisor.reading import read
from advisor.rules import engine, fingerprint
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


@pytest.mark.parametrize(("printed", "told"), [("1.95 GiB", True), ("1.96 GiB", False)])
def test_solved_tokens_give_the_number_that_was_printed(printed: str, told: bool) -> None:
    """8,192 tokens x 128,000 x 2 are 1.953 GiB, a whole number of 2 MiB: c10 prints 1.95, and never 1.96."""
    evidence = read([("error.txt", oom(printed, allocated=70.0, free=1.5))]).evidence
    shape = "{config: {model_type: llama, hidden_size: 3072, intermediate_size: 8192, num_hidden_layers: 4, num_attention_heads: 24, vocab_size: 128000}}"
    text = f"version: 1\nmodel: {shape}\nbatch: {{micro_batch: 4}}\nhardware: {{gpu: a100-80gb, gpus_per_node: 1}}\n"
    run = resolve(read_job(text), evidence)
    assert any(m.solved_tokens == 8192 for m in fingerprint.matches(run, evidence)) is told
