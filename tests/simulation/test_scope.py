"""What the probe refuses, with the field and the reason; which modes of the allocator it replays; what it keeps on the host."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.simulation import outside, scope
from advisor.simulation.request import CannotProbe
from tests.simulation.conftest import CONFIGS

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "parameters on the host": ({"offload": {"parameters": "cpu"}}, "offload.parameters"),
    "a trainer's own offloading": ({"offload": {"activations": "cpu"}, "framework": {"name": "unsloth"}}, "unsloth's own offloading"),
    "padding-free by another kernel": ({"activations": {"sequence_packing": "padding-free", "attention": "sdpa"}}, "without flash attention"),
    "compile": ({"activations": {"compile": True}}, "torch.compile"),
    "DeepSpeed's CPU optimizer": ({"parallel": {"strategy": "zero2"}, "offload": {"optimizer": "cpu"}}, r"offload\.optimizer"),
    "DeepSpeed with divided layers": ({"parallel": {"strategy": "zero2", "shard": 2, "tensor": 2}, "hardware": {"gpus_per_node": 4}}, r"parallel\.tensor"),
    "context": ({"parallel": {"strategy": "fsdp2", "shard": 2, "context": 2}, "hardware": {"gpus_per_node": 2}}, "context parallelism outside"),
    "images on several ranks": (
        {"model": {"vision": {"tokens": 4}}, "parallel": {"strategy": "fsdp2", "shard": 2}, "hardware": {"gpus_per_node": 2}}, "images on several ranks",
    ),
    "images under other losses": (
        {"model": {"vision": {"tokens": 4}}, "objective": "dpo", "framework": {"name": "trl"}, "activations": {"loss": "full-fp32"}},
        "images with other objectives",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_and_why(name: str, tiny: Callable[..., Any]) -> None:
    sections, said = REFUSED[name]
    with pytest.raises(CannotProbe, match=said):
        scope.check(tiny("llama", **sections))


@pytest.mark.parametrize(
    ("sections", "modes"),
    [
        ({}, ("default", "expandable")),
        ({"framework": {"name": "torchtitan"}}, ("expandable", "default")),
        ({"framework": {"name": "custom", "allocator": {"expandable_segments": True}}}, ("expandable",)),
        ({"hardware": {"gpu": "mi300x-192gb"}}, ("default",)),
        ({"hardware": {"gpu": "mi300x-192gb"}, "framework": {"name": "torchtitan", "versions": {"torch": "2.9.0.dev20250811+rocm6.4"}}}, ("default",)),
        ({"hardware": {"gpu": "mi300x-192gb"}, "framework": {"versions": {"torch": "2.12.0"}}}, ("default", "expandable")),
    ],
    ids=["not known", "by its launcher", "stated", "AMD", "AMD, launcher", "AMD since 2.11"],
)
def test_the_allocators_modes_are_those_that_the_run_may_have(sections: dict[str, Any], modes: tuple[str, ...], tiny: Callable[..., Any]) -> None:
    assert outside.modes(tiny("llama", **sections)) == modes


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_activations_on_the_host_are_counted_there_and_not_on_the_device(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import timeline
    from advisor.simulation.step import STEPS, record

    long = {"batch": {"seq_len": 256}}
    ledgers = []
    for offload in ({}, {"offload": {"activations": "cpu"}}):
        recorder = record(tiny("llama", **long, **offload))
        ledger = timeline.ledger(recorder.events, recorder.storages, recorder.moments, vocab=256, last_step=STEPS - 1, software={})
        ledgers.append(timeline.with_host(ledger, recorder.host_peak))
    here, away = ledgers
    saved = here.by_part("loss.backward")["activations"]
    assert here.host_peak() == 0
    assert away.host_peak() > saved  # weights are saved, and copied, too
    assert away.peak().bytes < here.peak().bytes - saved / 2


def test_a_config_bomb_is_refused_with_its_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started: no child, no torch."""
    from advisor.cli import main

    job = {
        "version": 1, "model": {"config": {**CONFIGS["llama"], "num_hidden_layers": 1_000_000}}, "batch": {"micro_batch": 1, "seq_len": 128},
        "hardware": {"gpu": "a100-80gb"},
    }  # fmt: skip
    written = tmp_path / "bomb.json"
    written.write_text(json.dumps(job), encoding="utf-8")
    assert main(["probe", str(written), "--quiet"]) != 0
    assert "1,000,000" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "my_model", "auto_map": {"AutoModelForCausalLM": "code--Model"}}, "has no model of model_type 'my_model'"),
        ({"hidden_act": "no_such"}, "no_such"),
    ],
    ids=["remote code", "a name of nothing"],
)
def test_a_config_that_no_class_takes_is_refused_in_one_short_line(change: dict[str, Any], said: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation.answering import answer
    from advisor.simulation.request import request

    told = answer(request(tiny("llama", model={"config": {**CONFIGS["llama"], **change}})))["error"]
    assert said in told
    assert "\n" not in told
    assert len(told) < 320


EXPERTS = {"method": {"kind": "lora", "rank": 4, "targets": "all-linear"}, "activations": {"attention": "sdpa", "checkpointing": "none"}}
PAIR = {"parallel": {"strategy": "fsdp1", "shard": 2, "replicate": 1}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 2}}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"method": {**EXPERTS["method"], "dropout": 0.1}}, "ParamWrapper does not work with lora_dropout"),
        (PAIR, "get_delta_weight.*FSDP1|FSDP1.*get_delta_weight"),
    ],
    ids=["dropout", "FSDP1"],
)
def test_adapters_of_fused_experts_say_what_peft_does_not_run(sections: dict[str, Any], said: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    with pytest.raises(CannotProbe, match=said):
        record(tiny("qwen3_moe", **{**EXPERTS, **sections}))
    record(tiny("qwen3_moe", **EXPERTS))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_experts_that_were_widened_are_multiplied_group_by_group(tiny: Callable[..., Any]) -> None:
    """k-bit preparation leaves fused experts in fp32, which meta's grouped product refuses and CUDA's does not: births and deaths are those of bf16."""
    from advisor.simulation.step import record

    def products(weights: str) -> list[tuple[tuple[int, ...], bool]]:
        recorder = record(tiny("qwen3_moe", precision={"weights": weights, "compute": weights}))
        found = [(event, recorder.storages[event.id]) for event in recorder.events]
        return [
            (s.shape, event.free) for event, s in found if s.operator == "aten::_grouped_mm" and s.dtype == {"fp32": "float32", "bf16": "bfloat16"}[weights]
        ]

    assert products("fp32") == products("bf16") != []
