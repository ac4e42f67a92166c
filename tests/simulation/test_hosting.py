"""FSDP with its shards on the host: host and device apart, by hand-worked bytes; deeper models extended, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from advisor.ledger import Ledger
from tests.simulation.conftest import CONFIGS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

HOME = dict.fromkeys(("parameters", "gradients", "optimizer"), "cpu")
MIXED = {"weights": "fp32", "compute": "bf16", "mixed": "fsdp", "reduce": "fp32"}
TWO = {"parallel": {"strategy": "fsdp2", "shard": 2, "replicate": 1}, "hardware": {"gpu": "a100-80gb", "gpus_per_node": 2}, "precision": MIXED}
FIRST = {"parallel": {"strategy": "fsdp1", "shard": 2, "replicate": 1}}
LAYER = [64 * 64, 32 * 64, 32 * 64, 64 * 64, *[64 * 160] * 3, 64, 64]  # attention, MLP, two norms
ROOT = [256 * 64, 256 * 64, 64]


def _ledger(run: Any, **how: Any) -> Ledger:
    from advisor.simulation import timeline
    from advisor.simulation.step import STEPS, record

    recorder = record(run, **how)
    ledger = timeline.ledger(recorder.events, recorder.storages, recorder.moments, vocab=256, last_step=STEPS - 1, software={})
    return timeline.with_home(ledger, recorder.host_events, recorder.storages, recorder.host_moments, vocab=256, last_step=STEPS - 1)


def _of(ledger: Ledger, device: str, moment: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for h in ledger.holdings:
        if h.device == device and moment in h.moments:
            found[h.part] = found.get(h.part, 0) + h.bytes
    return found


def test_the_host_holds_shards_gradients_and_states_and_the_device_none(tiny: Callable[..., Any]) -> None:
    shards = [size // 2 * 4 for size in (*LAYER * 2, *ROOT)]
    pinned = sum(1 << (size - 1).bit_length() for size in shards)  # powers of two: 160 columns are not
    away, here = (_ledger(tiny("llama", **TWO, offload=offload)) for offload in (HOME, {}))
    assert pinned > sum(shards)
    assert _of(away, "host", "forward.blocks") == {"weights": pinned, "optimizer": 2 * sum(shards)}
    step = _of(away, "host", "step.update")
    assert (step["weights"], step["gradients"]) == (pinned, pinned)
    assert step["optimizer"] > 2 * sum(shards)  # with what one parameter's step makes on the way
    assert away.host_peak() == sum(step.values())
    assert not _of(here, "host", "step.update")
    on_device = {moment.id: _of(away, "gpu", moment.id) for moment in away.moments}
    assert not any(parts.get("gradients") or parts.get("optimizer") for parts in on_device.values())
    buffers = sum(h.bytes for h in away.holdings if h.device == "gpu" and h.part == "weights" and "step.update" in h.moments)
    assert buffers <= 2 * 512  # the rotary embedding's frequencies
    rest = [*shards, *shards, *shards, *shards]
    rounded = sum(-(-size // 512) * 512 for size in rest)
    assert here.at("step") - away.at("step") >= rounded  # and the temporaries of a step that is taken on the host


def test_fsdp1_makes_a_gradient_on_the_host_for_what_is_frozen_too(tiny: Callable[..., Any]) -> None:
    lora = {"kind": "lora", "rank": 4, "targets": ["q_proj"]}
    away = _ledger(tiny("llama", **{**TWO, **FIRST}, offload=HOME, method=lora))
    step = _of(away, "host", "step.update")
    adapters = 2 * 2 * (4 * 64 + 64 * 4)  # of two layers: A and B, in fp32 halves
    assert step["gradients"] == step["weights"] > 10 * adapters
    assert adapters * 2 <= step["optimizer"] < adapters * 4
    assert not any(h.part == "gradients" and h.device == "gpu" and "step.update" in h.moments for h in away.holdings)


def test_fsdp1_narrows_a_copy_of_each_shard_on_the_device(tiny: Callable[..., Any]) -> None:
    """Under mixed precision a whole shard in fp32 lies beside its cast for a moment, for every unit of the model."""
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **{**TWO, **FIRST}, offload=HOME))
    first = [s for s in recorder.storages.values() if s.step == 1 and s.phase == "forward" and not s.host and s.stream]
    copies = sorted(s.requested for s in first if s.dtype == "float32" and s.operator == "aten::empty.memory_format")
    assert copies == sorted(4 * sum(sizes) // 2 for sizes in (LAYER, LAYER, ROOT))


def test_each_unit_is_copied_to_the_device_before_it_is_gathered(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **TWO, offload=HOME))
    first = [s for s in recorder.storages.values() if s.step == 1 and s.phase == "forward" and not s.host and s.operator == "aten::empty.memory_format"]
    copies = [s.requested for s in first if s.dtype == "float32" and len(s.shape) == 1]
    assert sorted(copies) == sorted(size // 2 * 4 for size in (*LAYER * 2, *ROOT))


def test_a_deeper_model_is_extended_to_the_byte_on_both(tiny: Callable[..., Any]) -> None:
    from advisor.simulation import extrapolating

    deep = tiny("llama", **TWO, offload=HOME, model={"config": {**CONFIGS["llama"], "num_hidden_layers": 9}})
    whole, extended = _ledger(deep), extrapolating.ledger(deep, lambda _: None, {})
    for device in ("gpu", "host"):
        assert {m.id: sum(_of(whole, device, m.id).values()) for m in whole.moments} == {m.id: sum(_of(extended, device, m.id).values()) for m in whole.moments}
    assert whole.host_peak() == extended.host_peak() > 0


def test_accumulation_adds_on_the_host(tiny: Callable[..., Any]) -> None:
    """The second micro batch's reduced shards are copied and added there: pageable, as nothing overlaps."""
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **TWO, offload=HOME, batch={"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 2}))
    copies = [s for s in recorder.storages.values() if s.host and s.operator == "aten::_to_copy" and s.step == 1]
    assert len(copies) == 2 * (2 * len(LAYER) + len(ROOT))
    assert sum(s.bytes == s.requested for s in copies if s.shape == (80, 64)) == 2 * 2  # of gate and up projections, the second time
    living = _ledger(tiny("llama", **TWO, offload=HOME, batch={"micro_batch": 2, "seq_len": 32, "gradient_accumulation": 2}))
    assert _of(living, "host", "step.update")["gradients"] == _of(living, "host", "step.update")["weights"]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"offload": {"optimizer": "cpu"}}, r"offloading \(offload.optimizer\) but FSDP's own"),
        ({"offload": HOME, "method": {"kind": "lora", "rank": 4, "base": "nf4"}}, "a quantised base"),
        ({"offload": HOME, "parallel": {"tensor": 2}, "hardware": {"gpus_per_node": 4}}, "divided layers"),
        ({"offload": HOME, **FIRST, "batch": {"gradient_accumulation": 2}}, "after every micro batch"),
        ({"offload": HOME, "parallel": {"strategy": "ddp", "shard": 1, "replicate": 2}}, "offload.parameters"),
    ],
    ids=["the optimizer alone", "a quantised base", "divided layers", "FSDP1, accumulation", "DDP"],
)
def test_what_else_goes_to_the_host_is_refused(sections: dict[str, Any], said: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import scope
    from advisor.simulation.request import CannotProbe

    merged = {name: {**TWO.get(name, {}), **values} if isinstance(values, dict) else values for name, values in sections.items()}
    with pytest.raises(CannotProbe, match=said):
        scope.check(tiny("llama", **{**TWO, **merged}))
