"""Two values of one setting side by side, and what a step gives back: what the difference implies, and where it implies nothing."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.evidence import Evidence, Line
from advisor.rules import compared
from advisor.rules.samples import oom
from advisor.units import GIB

CALL = "prepare_model_for_kbit_training"


def _evidence(*lines: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"log.txt:{n + 1}", text, None, 1) for n, text in enumerate(lines)))


@pytest.mark.parametrize("left", ["no {}: 10 GiB", "skipping {}  10 GiB", "10 GiB w/o calling {}"])
def test_a_call_and_its_absence(left: str) -> None:
    both = compared.with_and_without(_evidence(f"{CALL} 14 GiB", left.format(CALL)), CALL)
    assert both is not None
    assert (both[0].value, both[1].value) == (14 * GIB, 10 * GIB)


@pytest.mark.parametrize(
    "lines", [(f"{CALL} 14 GiB",), (f"{CALL} 14 GiB", f"{CALL} 10 GiB"), (f"{CALL} 14 GiB", f"no {CALL}: memory 40 %"), (CALL, f"no {CALL}")]
)
def test_one_side_or_two_units_are_no_comparison(lines: tuple[str, ...]) -> None:
    assert compared.with_and_without(_evidence(*lines), CALL) is None


def test_figures_by_the_value_of_a_setting() -> None:
    found = compared.by_value(
        _evidence("grad_accum=8 memory 70 %", "grad_accum=1 memory 31 %", "grad_accum: 8 memory 1 %", "accuracy 50 %, grad_accum=2"), "grad_accum"
    )
    assert [(n, f.value) for n, f in found] == [(1, 31.0), (8, 70.0)]
    assert not compared.by_value(_evidence("grad_accum=8 memory 70 %", "grad_accum=1 12 GiB"), "grad_accum")


def _causes(text: str) -> dict[str, float]:
    return {f.cause: f.confidence for f in diagnose([("log.txt", text), ("train.py", "trainer = Trainer(model=model, args=args)\n")]).findings}


def test_a_step_that_takes_the_card_and_gives_it_back_takes_it_for_its_batch() -> None:
    rows = "".join(f"iter={n} alloc={stays} peak=70.{n} GiB\n" for n, stays in ((1, "9.1"), (2, "9.1"), (3, "9.1")))
    found = _causes(rows + oom("512.00 MiB", allocated=76.5))
    assert next(iter(found)) in ("checkpointing-off", "activations")
    state = _causes(rows.replace("9.1", "60.0") + oom("512.00 MiB", allocated=76.5))  # what stays is the larger part: no sign of the batch
    assert found["checkpointing-off"] > 2 * state.get("checkpointing-off", 0.0)
