"""Adapters on modules that the model does not have, and lists as people write them."""

from __future__ import annotations

import pytest

from advisor.job import read_job
from advisor.resolving.contradictions import contradictions
from advisor.run import resolve
from advisor.stating import validated


def told(name: str, targets: str) -> list[str]:
    job = read_job(f"version: 1\nmodel: {{name: {name}}}\nmethod: {{kind: lora, rank: 4, targets: {targets}}}\n")
    return [sentence for sentence in contradictions(resolve(job)) if "method.targets" in sentence]


@pytest.mark.parametrize(
    ("name", "targets", "has"),
    [("gpt2", "[q_proj, v_proj]", "c_attn"), ("Qwen/Qwen2.5-0.5B", "[plum]", "gate_proj"), ("Qwen/Qwen2.5-0.5B", "[c_attn, query_key_value]", "q_proj")],
)
def test_modules_that_are_not_there_are_said_with_those_that_are(name: str, targets: str, has: str) -> None:
    (sentence,) = told(name, targets)
    assert has in sentence


@pytest.mark.parametrize("targets", ["[q_proj, plum]", "all-linear", "[self_attn.v_proj]", "attention"])
def test_one_that_is_there_is_enough(targets: str) -> None:
    assert not told("Qwen/Qwen2.5-0.5B", targets)


@pytest.mark.parametrize("text", ["q_proj,v_proj", "[q_proj,v_proj]", "[q_proj, v_proj]", "['q_proj', \"v_proj\"]"])
def test_a_list_is_stated_in_any_usual_way(text: str) -> None:
    assert validated("method.targets", text) == ("q_proj", "v_proj")
