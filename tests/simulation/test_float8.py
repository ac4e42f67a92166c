"""fp8 products: the stand-in's births and deaths are torchao's own, and what it does not stand for is refused by name."""

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
@pytest.mark.parametrize(("dtype", "bias"), [("bfloat16", False), ("float32", True)])
def test_births_and_deaths_are_torchaos(dtype: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_training_tensor import Float8TrainingTensor

    from advisor.simulation import following, recorder, tensors
    from advisor.simulation.standins import float8

    monkeypatch.setattr(recorder, "wrappers", lambda: (*tensors.wrappers(), Float8TrainingTensor))
    for module in (recorder, following):
        monkeypatch.setattr(module, "local", lambda value: value._data if isinstance(value, Float8TrainingTensor) else tensors.local(value))
    theirs = _stream(convert_to_float8_training, "cpu", dtype, bias=bias)
    assert _stream(float8.convert, "cpu", dtype, bias=bias) == theirs
    assert _stream(float8.convert, "meta", dtype, bias=bias) == theirs


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
    ],
)
def test_what_it_does_not_stand_for_is_refused_by_name(sections: dict[str, Any], says: str, tiny: Callable[..., Any]) -> None:
    from advisor.simulation import CannotProbe
    from advisor.simulation.step import record

    with pytest.raises(CannotProbe, match=says):
        record(tiny("llama", **{**FP8, **sections}))
