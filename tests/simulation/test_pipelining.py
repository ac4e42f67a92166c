"""A pipeline's stages: which layers each has, how many micro batches it holds, which stage is answered for, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from advisor.simulation.request import CannotProbe
from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def _deep(layers: int) -> dict[str, Any]:
    return {"config": {**CONFIGS["llama"], "num_hidden_layers": layers}}


def _staged(stages: int = 4, micro_batches: int = 6, **parallel: Any) -> dict[str, Any]:
    return {
        "parallel": {"strategy": "none", "pipeline": stages, "microbatches": micro_batches, **parallel}, "model": _deep(8),
        "hardware": {"gpu": "a100-80gb", "gpus_per_node": stages}, "batch": {"micro_batch": 2, "seq_len": 32},
    }  # fmt: skip


def _at_once(recorder: Any, operator: str, module: str) -> int:
    """Most storages of an operator in a module's forward pass that are alive at one time in the last step."""
    alive = most = 0
    for event in recorder.events:
        storage = recorder.storages[event.id]
        if storage.operator == operator and storage.module == module and storage.phase == "forward" and storage.step == 1:
            alive += -1 if event.free else 1
            most = max(most, alive)
    return most


@pytest.mark.parametrize(("stage", "held"), [(0, 4), (1, 3), (2, 2), (3, 1)])
def test_stage_i_of_p_holds_p_minus_i_micro_batches(stage: int, held: int, tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **_staged()), rank=stage)
    assert _at_once(recorder, "aten::silu", "model.layers.1.mlp.act_fn") == held


def test_with_fewer_micro_batches_than_a_stage_would_hold_it_holds_those(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    interleaved = record(tiny("llama", **_staged(2, 2, virtual_stages=4)), rank=0)
    assert _at_once(interleaved, "aten::silu", "stage0.model.layers.0.mlp.act_fn") == 2


def test_a_buffer_for_each_micro_batch_is_received_into_and_kept(tiny: Callable[..., Any]) -> None:
    """The stage in the middle: activations and gradients of six micro batches ``[2, 32, 64]`` in fp32, from the first step to the end."""
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **_staged()), rank=1)
    ended = {event.id for event in recorder.events if event.free}
    buffers = [s for number, s in recorder.storages.items() if s.shape == (2, 32, 64) and s.operator.startswith("aten::empty") and number not in ended]
    assert [s.requested for s in buffers] == [2 * 32 * 64 * 4] * 12


def test_the_last_stage_joins_all_its_logits_but_for_torchtitan(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    logits = 2 * 32 * 256 * 4
    for framework, source, joined in (("custom", "huggingface", 1), ("torchtitan", "torchtitan", 0)):
        job = {**_staged(2), "framework": {"name": framework}}
        recorder = record(tiny("llama", **{**job, "model": {**job["model"], "source": source}}), rank=1)
        assert sum(s.requested == 6 * logits and s.operator == "aten::cat" and s.step == 1 for s in recorder.storages.values()) == joined


@pytest.mark.parametrize(
    ("framework", "sections", "layers"),
    [
        ("custom", {"pipeline": 4}, (3, 3, 2, 2)),
        ("torchtitan", {"pipeline": 4}, (2, 3, 3, 2)),
        ("custom", {"pipeline": 2, "virtual_stages": 2}, (3, 3, 2, 2)),
        ("custom", {"pipeline": 2, "pipeline_layout": (7, 3)}, (7, 3)),
    ],
)
def test_layers_are_dealt_out_as_each_framework_does(framework: str, sections: dict[str, Any], layers: tuple[int, ...], tiny: Callable[..., Any]) -> None:
    """torchtitan takes embedding and head for a layer each: 12 in 4 stages are 3 each, of which the outer ones give one away."""
    from advisor.simulation.ranks import cutting

    job = tiny("llama", model=_deep(10), framework={"name": framework}, parallel={"strategy": "none", **sections}).effective
    assert cutting.layout(job, 10) == layers


def test_a_layout_of_other_layers_is_refused(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.ranks import cutting

    job = tiny("llama", **_staged(2, pipeline_layout=(4, 5))).effective
    with pytest.raises(CannotProbe, match="9 layers together are written, and the model has 8"):
        cutting.layout(job, 8)


@pytest.mark.parametrize(
    ("parallel", "looked"),
    [
        ({}, (0, 1, 3)),
        ({"pipeline_rank": "first"}, (0,)),
        ({"pipeline_rank": "last"}, (3,)),
        ({"pipeline_rank": 2}, (2,)),
        ({"pipeline_layout": (1, 2, 4, 1)}, (0, 1, 2, 3)),
    ],
    ids=["most", "first", "last", "the third", "more layers later"],
)
def test_the_stages_that_may_need_most_are_looked_at(parallel: dict[str, Any], looked: tuple[int, ...], tiny: Callable[..., Any]) -> None:
    from advisor.simulation.ranks import pipelining

    assert pipelining.looked_at(tiny("llama", **_staged(**parallel))) == looked


def test_the_fullest_stage_is_answered_for_and_named(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.ranks import looking
    from advisor.simulation.step import record

    def peak(recorder: Any) -> int:
        sizes = [-recorder.storages[e.id].bytes if e.free else recorder.storages[e.id].bytes for e in recorder.events]
        return max(sum(sizes[:index]) for index in range(len(sizes) + 1))

    run = tiny("llama", **_staged(2, 3, pipeline_layout=(2, 6)))
    every = [record(run, rank=stage) for stage in range(2)]
    found, said = looking.fullest(run, lambda rank: every[rank], lambda _: None)
    assert said == "pipeline stage 2 of 2, which needs most of stages 1, 2"
    assert found is every[1]
    assert peak(every[1]) > peak(every[0])


def test_stages_are_not_extended_from_a_few_layers(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating

    with pytest.raises(extrapolating.Refused, match="stages of a pipeline"):
        extrapolating.depth_key(tiny("llama", **_staged()))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"framework": {"name": "hf-trainer"}}, "hf-trainer's own pipeline parallelism"),
        ({"parallel": {"strategy": "ddp", "replicate": 2}, "hardware": {"gpus_per_node": 8}}, "ddp within the stages"),
        ({"parallel": {"tensor": 2}, "hardware": {"gpus_per_node": 8}}, "divided layers"),
        ({"method": {"kind": "lora", "rank": 4}}, "lora in a pipeline's stages"),
        ({"precision": {"compute": "bf16", "mixed": "autocast"}}, "autocast around"),
        ({"activations": {"loss": "fused-linear"}}, "a fused-linear loss"),
        ({"parallel": {"microbatches": 3}}, r"fewer micro batches \(3\) than stages \(4\)"),
    ],
)
def test_what_a_pipeline_is_not_run_with_is_said(sections: dict[str, Any], said: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import scope

    job = _staged()
    merged = {**job, **{name: {**job.get(name, {}), **values} for name, values in sections.items()}}
    with pytest.raises(CannotProbe, match=said):
        scope.check(tiny("llama", **merged))
