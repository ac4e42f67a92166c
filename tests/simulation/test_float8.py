"""fp8 products: the stand-in's births and deaths are torchao's own, and what it does not stand for is refused by name."""

import functools
import importlib.util
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FP8 = {"precision": {"weights": "bf16", "compute": "fp8", "mixed": "none"}, "hardware": {"gpu": "h100-80gb"}}
Row = tuple[str, str, tuple[int, ...], str]


def _stream(convert: Callable[[Any], Any], device: str, dtype: str, *, bias: bool) -> list[Row]:
    """Births and deaths of what is larger than a scale: two layers forward and backward. Deaths next to each other may swap."""
    import torch

    from advisor.simulation.recorder import Recorder

    with torch.device(device):
        model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=bias), torch.nn.Linear(128, 64, bias=bias)).to(getattr(torch, dtype))
        x = torch.randn(2, 32, 64, dtype=torch.bfloat16, requires_grad=True)
    model = convert(model) or model
    recorder = Recorder(device=device)
    with recorder:
        total = model(x).sum()
        recorder.phase = "backward"
        total.backward()
        recorder.close()
    rows = []
    for event in recorder.events:
        s = recorder.storages[event.id]
        if s.requested > 64:
            copied = "a copy" if s.operator in ("aten::clone", "aten::contiguous") else s.operator  # torchao's tensors have an operator of their own for it
            rows.append(("death" if event.free else "birth", copied, s.shape, s.dtype))
    return [row for kind, run in groupby(rows, key=lambda r: r[0]) for row in (sorted(run) if kind == "death" else run)]


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install torchao")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize(("dtype", "bias"), [("bfloat16", False), ("float32", True)])
def test_births_and_deaths_are_torchaos(dtype: str, bias: bool, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_training_tensor import Float8TrainingTensor

    from advisor.simulation import following, recorder, tensors
    from advisor.simulation.standins import float8

    monkeypatch.setattr(recorder, "wrappers", lambda: (*tensors.wrappers(), Float8TrainingTensor))
    for module in (recorder, following):
        monkeypatch.setattr(module, "local", lambda value: value._data if isinstance(value, Float8TrainingTensor) else tensors.local(value))
    config = Float8LinearConfig.from_recipe_name(recipe)
    ours = functools.partial(float8.convert, rowwise=recipe == "rowwise")
    theirs = _stream(functools.partial(convert_to_float8_training, config=config), "meta", dtype, bias=bias)
    assert _stream(ours, "meta", dtype, bias=bias) == theirs
    if recipe == "tensorwise":
        assert _stream(ours, "cpu", dtype, bias=bias) == theirs
        assert _stream(functools.partial(convert_to_float8_training, config=config), "cpu", dtype, bias=bias) == theirs


def test_a_product_casts_both_factors_and_keeps_neither_cast() -> None:
    """By hand from torchao's source: a cast is the largest value's ``abs``, an fp32 copy, its scaled and its clamped one, and a byte an element."""
    from advisor.simulation.standins import float8

    rows = _stream(float8.convert, "meta", "bfloat16", bias=False)
    first = next(row for row in rows if row[1] == "aten::_scaled_mm")
    x, weight = (2, 32, 64), (64, 128)
    steps = [("aten::abs", "bfloat16"), ("aten::_to_copy", "float32"), ("aten::mul.Tensor", "float32"), ("aten::clamp", "float32")]
    cast = [*steps, ("aten::_to_copy", "float8_e4m3fn")]
    until = [row for row in rows[: rows.index(first)] if row[0] == "birth" and row[1] != "aten::t"]  # the weight is seen as its transpose
    assert until == [("birth", operator, shape, dtype) for shape in (x, weight) for operator, dtype in cast]
    after = rows[rows.index(first) + 1 :]
    assert [row[2:] for row in after[:2]] == [(x, "float8_e4m3fn"), (weight, "float8_e4m3fn")]
    assert {row[0] for row in after[:2]} == {"death"}


def test_compiled_a_product_makes_its_factors_in_eight_bits_and_nothing_else() -> None:
    """By hand: inductor reads the wide tensors and writes each factor once; the backward pass does so for its two products."""
    from advisor.simulation.standins import float8

    rows = _stream(functools.partial(float8.convert, compiled=True), "meta", "bfloat16", bias=False)
    first = rows.index(("birth", "aten::_scaled_mm", (64, 128), "bfloat16"))
    made = [row[2:] for row in rows[:first] if row[0] == "birth" and row[1] not in ("aten::t", "aten::view")]  # input and weight are seen as views
    assert made == [((64, 64), "float8_e4m3fn"), ((128, 64), "float8_e4m3fn")]
    assert sorted(row[2:] for row in rows[first + 1 : first + 3] if row[0] == "death") == sorted(made)
    assert [row[2] for row in rows if row[1] == "aten::_scaled_mm" and row[0] == "birth"] == [(64, 128), (64, 64), (64, 128), (64, 128), (64, 64), (128, 64)]
    assert not [row for row in rows if row[3] == "float32"]


TITAN: dict[str, Any] = {
    "model": {"source": "torchtitan"}, "framework": {"name": "torchtitan"}, "parallel": {"strategy": "fsdp2", "shard": 8},
    "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8}, "activations": {"checkpointing": "selective", "selective": {"policy": "op"}},
}  # fmt: skip


def _on_ranks(tiny: Callable[..., Any], *, recipe: str, compiled: bool = False, compute: str = "fp8") -> Any:
    from advisor.simulation.step import record

    precision = {"weights": "fp32", "compute": compute, "mixed": "fsdp", "reduce": "fp32", **({"fp8_recipe": recipe} if compute == "fp8" else {})}
    return record(tiny("llama", **{**TITAN, "activations": {**TITAN["activations"], "compile": compiled}}, precision=precision))


def _sizes(recorder: Any) -> list[tuple[bool, str, tuple[int, ...], str]]:
    """What lives across a product on this rank: births and deaths in gathers, reductions and what is kept, without casts."""
    kept = [(event.free, recorder.storages[event.id]) for event in recorder.events]
    return [(free, s.part or "", s.shape, s.dtype) for free, s in kept if s.part in ("weights", "gradients", "communication", "optimizer")]


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("compiled", [False, True])
def test_ranks_divide_and_gather_as_in_sixteen_bits(recipe: str, compiled: bool, tiny: Callable[..., Any]) -> None:
    ours, wide = _on_ranks(tiny, recipe=recipe, compiled=compiled), _on_ranks(tiny, recipe=recipe, compiled=compiled, compute="bf16")
    assert any(s.dtype == "float8_e4m3fn" for s in ours.storages.values())
    assert sorted(_sizes(ours)) == sorted(_sizes(wide))


def test_the_policy_over_operators_keeps_every_second_product_in_eight_bits_too(tiny: Callable[..., Any]) -> None:
    """Of a block's seven products the first, third and fifth outlive the forward pass; the seventh too, but not compiled."""
    for compiled, kept in ((False, 4), (True, 3)):
        recorder = _on_ranks(tiny, recipe="tensorwise", compiled=compiled)
        alive: set[int] = set()
        for number, event in enumerate(recorder.events):
            if any(at == number and phase == "backward" and step == 1 for at, phase, step in recorder.marks):
                break
            (alive.discard if event.free else alive.add)(event.id)
        made = [recorder.storages[n] for n in alive if recorder.storages[n].operator == "aten::_scaled_mm" and recorder.storages[n].step == 1]
        assert len(made) == kept * 2  # of two layers


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed: pip install torchao")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_a_rank_peaks_as_with_torchaos_own_layers(recipe: str, tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_training_tensor import Float8TrainingTensor

    from advisor.simulation import following, recorder, tensors
    from advisor.simulation.replaying import replay
    from advisor.simulation.standins import float8

    def replayed(seen: Any) -> tuple[int, int]:
        found = replay(seen.events, {n: s.requested for n, s in seen.storages.items()}, streams={n: s.stream for n, s in seen.storages.items()})
        return found.max_allocated, found.max_reserved

    ours = replayed(_on_ranks(tiny, recipe=recipe))
    config = Float8LinearConfig.from_recipe_name(recipe)

    def own(model: Any, **_: Any) -> None:
        convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != "output")

    monkeypatch.setattr(float8, "convert", own)
    monkeypatch.setattr(recorder, "wrappers", lambda: (*tensors.wrappers(), Float8TrainingTensor))
    for module in (recorder, following):
        monkeypatch.setattr(module, "local", lambda value: value._data if isinstance(value, Float8TrainingTensor) else tensors.local(value))
    assert replayed(_on_ranks(tiny, recipe=recipe)) == ours


def test_a_step_keeps_weights_in_their_own_dtype(tiny: Callable[..., Any]) -> None:
    from advisor.simulation.step import record

    recorder = record(tiny("llama", **FP8))
    weights = {s.dtype for s in recorder.storages.values() if s.part == "weights" and (s.name or "").endswith("weight")}
    assert weights == {"bfloat16"}
    assert any(s.dtype == "float8_e5m2" for s in recorder.storages.values())
    assert not any(s.operator == "aten::_scaled_mm" and s.shape[-1] == 256 for s in recorder.storages.values())  # the head is left as it is


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"framework": {"name": "hf-trainer"}}, "fp8 products as hf-trainer makes them"),
        ({"precision": {**FP8["precision"], "fp8_recipe": "delayed"}}, "delayed scales"),
        ({"precision": {**FP8["precision"], "compute": "nvfp4"}}, "nvfp4 products"),
        ({"method": {"kind": "lora", "rank": 4}}, "beside lora"),
        ({"parallel": {"strategy": "fsdp1", "shard": 2, "replicate": 1}, "hardware": {"gpu": "h100-80gb", "gpus_per_node": 2}}, "fp8 products under fsdp1"),
    ],
)
def test_what_it_does_not_stand_for_is_refused_by_name(sections: dict[str, Any], says: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import CannotProbe
    from advisor.simulation.step import record

    with pytest.raises(CannotProbe, match=says):
        record(tiny("llama", **{**FP8, **sections}))
