"""JSON files whose end is missing: complete pairs are kept, cut ones are not, and the break is named."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.reading import read
from advisor.reading.configs.cut_json import salvage

DEEPSPEED = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 500_000_000},
        "gradient_clipping": 1.0,
    },
    indent=2,
)
STATE = json.dumps(
    {"best_metric": None, "global_step": 120, "log_history": [{"loss": 2.1, "step": 110}], "save_steps": 200, "train_batch_size": 4, "x": 1}, indent=2
)
MODEL = json.dumps(
    {
        "_name_or_path": "a/b-7B",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "model_type": "llama",
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    },
    indent=2,
)


def values(name: str, text: str) -> dict[str, object]:
    return {fact.field: fact.value for fact in read([(name, text)]).evidence.facts}


def test_complete_pairs_are_kept_and_the_break_is_named() -> None:
    cut = DEEPSPEED[: DEEPSPEED.index("500000000") + 4]
    found = read([("half.json", cut)]).evidence
    facts = {fact.field: fact.value for fact in found.facts}
    assert facts["batch.micro_batch"] == 4
    assert (facts["parallel.strategy"], facts["offload.optimizer"]) == ("zero3", "cpu")
    assert "parallel.bucket_elements" not in facts  # 5000 of what was 500000000
    assert [(item.where, "breaks off" in item.why) for item in found.not_understood] == [(f"half.json:{cut.count(chr(10)) + 1}", True)]
    assert found.sources[0].kind.endswith("cut off")


def test_a_whole_file_has_no_such_note() -> None:
    assert not any("breaks off" in item.why for item in read([("ds.json", DEEPSPEED)]).evidence.not_understood)
    assert values("ds.json", DEEPSPEED)["parallel.bucket_elements"] == 500_000_000


@pytest.mark.parametrize("cut", [None, STATE.index('"x"')])
def test_a_trainer_state_names_the_batch_of_one_process(cut: int | None) -> None:
    found = values("trainer_state.json", STATE[:cut])
    assert (found["framework.name"], found["batch.micro_batch"]) == ("hf-trainer", 4)
    assert "batch.global_batch" not in found


def test_a_cut_model_config_gives_no_shape() -> None:
    assert "model.config" in values("config.json", MODEL)
    cut = values("config.json", MODEL[: MODEL.index('"vocab')])
    assert cut["model.name"] == "a/b-7B"
    assert "model.config" not in cut


@pytest.mark.parametrize("text", ["", "{", '{"a"', '{"a": 1', '{"a": 1}{"b": 2', '{"a": [1, 2}', "[1, 2", "{'a': 1, 'b': 2", '{"a": 1} trailing, words'])
def test_nothing_is_made_up(text: str) -> None:
    assert salvage(text) is None


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99_999) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), TREES, min_size=1, max_size=4), st.data())
def test_what_is_kept_stood_there(tree: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(tree)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    saved = salvage(cut)
    if saved is not None:
        assert _within(saved[0], tree)


def _within(part: object, whole: object) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and _within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(_within(a, b) for a, b in zip(part, whole, strict=False))
    return part == whole


def test_a_large_cut_file_takes_no_time() -> None:
    text = '{"log_history": [' + '{"loss": 1.5, "step": 10, "text": "a\\"b, {c"}, ' * 20_000
    started = time.perf_counter()
    assert salvage(text) is not None
    assert time.perf_counter() - started < 2
