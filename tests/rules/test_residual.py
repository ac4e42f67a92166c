"""How a ledger explains counters: inside its range it is not blamed, outside the more the further."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from advisor.ledger import Holding, Ledger, Moment
from advisor.rules import residual
from advisor.rules.counters import NOTHING, Counters
from advisor.units import GIB

MOMENTS = (Moment("load", "load"), Moment("forward", "forward"), Moment("backward", "backward"))


def _ledger(weights: float, activations: float) -> Ledger:
    def held(part: str, gib: float, *moments: str) -> Holding:
        return Holding(part, part, round(gib * GIB), frozenset(moments), "sum", {}, "test")

    return Ledger("estimated", (held("weights", weights, "load", "forward", "backward"), held("activations", activations, "forward", "backward")), MOMENTS)


def _counters(allocated: float, requested: float = 0.0) -> Counters:
    return Counters(round(requested * GIB), round(allocated * GIB), round(allocated * GIB), 0, 80 * GIB, 0, 0, False)


def test_inside_the_range_nothing_is_held_against_it() -> None:
    assert residual.fit(_ledger(15, 60), _counters(40, 1), "forward").value == 0.0


def test_more_than_the_peak_counts_against_it() -> None:
    near, far = residual.fit(_ledger(15, 10), _counters(28), "forward"), residual.fit(_ledger(15, 10), _counters(70), "forward")
    assert far.value < near.value < 0.0 and far.value == residual.WORST


def test_what_should_already_have_failed_counts_against_it() -> None:
    assert residual.fit(_ledger(130, 10), _counters(78), "forward").value < 0.0


def test_without_counters_nothing_is_said() -> None:
    assert residual.fit(_ledger(15, 10), NOTHING, "forward").value == 0.0


@given(st.floats(0.5, 200), st.floats(0.5, 200))
def test_it_is_never_above_zero_nor_below_the_worst(allocated: float, weights: float) -> None:
    value = residual.fit(_ledger(weights, 10), _counters(allocated), None).value
    assert residual.WORST <= value <= 0.0
