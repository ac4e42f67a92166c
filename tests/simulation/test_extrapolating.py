"""A few layers, extended, are the whole model to the byte, or it is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BF16 = {"precision": {"weights": "bf16", "compute": "bf16"}}


@pytest.mark.parametrize(
    "sections",
    [
        {"activations": {"checkpointing": "full", "reentrant": True, "attention": "flash-2"}},
        {"method": {"kind": "lora", "rank": 4}, "batch": {"micro_batch": 4, "seq_len": 256}},
        {"batch": {"micro_batch": 4, "seq_len": 256}, "activations": {"attention": "flash-2"}},
    ],
    ids=["checkpointing", "lora", "activations"],
)
def test_a_few_layers_extended_are_the_whole(sections: dict[str, Any], tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating, timeline
    from advisor.simulation.step import STEPS, record

    run = tiny("llama", **BF16, model={"config": {**CONFIGS["llama"], "num_hidden_layers": 7}}, **sections)
    extended = extrapolating.ledger(run, lambda _: None, {})
    seen = record(run)
    whole = timeline.ledger(seen.events, seen.storages, seen.moments, vocab=256, last_step=STEPS - 1, software={})
    assert extended.phases() == whole.phases()
    assert extended.by_part() == whole.by_part()
    assert sum(h.bytes for h in extended.peak().holdings) == extended.peak().bytes


def test_layers_that_differ_are_run_whole(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating

    with pytest.raises(extrapolating.Refused, match="not all alike"):
        extrapolating.depth_key(tiny("gemma2", activations={"attention": "eager"}))


def test_lists_with_an_entry_for_each_layer_are_cut(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating

    named = {**CONFIGS["qwen3"], "num_hidden_layers": 7, "layer_types": ["full_attention"] * 7}
    plain = {key: value for key, value in named.items() if key != "layer_types"}
    with_list, without = (extrapolating.ledger(tiny("qwen3", **BF16, model={"config": c}), lambda _: None, {}) for c in (named, plain))
    assert with_list.by_part() == without.by_part()
    assert extrapolating.shallower(named, "num_hidden_layers", 3)["layer_types"] == ["full_attention"] * 3


def test_lists_that_tell_layers_apart_are_refused(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating

    apart = {**CONFIGS["llama"], "num_hidden_layers": 7, "kept_of_each": [1, 1, 1, 1, 1, 2, 1]}
    with pytest.raises(extrapolating.Refused, match="kept_of_each"):
        extrapolating.depth_key(tiny("llama", model={"config": apart}))


def test_what_is_not_linear_is_refused() -> None:
    from advisor.simulation.extrapolating import Largest, Refused, extended

    segment = ("forward", "model.layers.middle", "aten::mm")
    with pytest.raises(Refused, match="not linear"):
        extended({segment: Largest(1)}, {segment: Largest(2)}, {segment: Largest(4)}, 32)
