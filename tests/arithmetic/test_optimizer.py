"""States by optimizer, per parameter, as the libraries hold them."""

from __future__ import annotations

import pytest

from advisor.arithmetic import estimate
from advisor.arithmetic.parameters import Item
from advisor.arithmetic.states import of
from tests.arithmetic.jobs import job

BIG = Item("down_proj", "mlp", 4096 * 14336, 1, 4096, 14336, "trained")
SMALL = Item("norm", "norm", 2048, 1, 2048, 1, "trained", matrix=False)
TABLE = Item("embed_tokens", "embedding", 128256 * 4096, 1, 128256, 4096, "trained")


@pytest.mark.parametrize(
    ("name", "item", "each", "expected"),
    [
        ("adamw", BIG, 4, 8.0),
        ("adamw-8bit", BIG, 4, 2 * (1 + 4 / 256)),  # bitsandbytes blocks of 256
        ("adamw-8bit", SMALL, 4, 8.0),  # under 4,096 elements
        ("adamw-4bit", BIG, 2, 2 * (0.5 + 4 / 128)),  # torchao blocks of 128
        ("lion", BIG, 2, 2.0),
        ("sgd", BIG, 4, 0.0),
        ("muon", BIG, 4, 4.0),
        ("muon", TABLE, 4, 8.0),  # AdamW outside the matrices
        ("adafactor", BIG, 4, 4 * (4096 + 14336) / (4096 * 14336)),
        ("adafactor", SMALL, 4, 4.0),
    ],
)
def test_bytes_a_parameter(name: str, item: Item, each: int, expected: float) -> None:
    assert of(name, item, each) / item.elements == pytest.approx(expected, rel=1e-3)


def test_eight_bit_states_leave_the_embedding_wide_where_the_trainer_says_so() -> None:
    assert of("adamw-8bit", TABLE, 4, wide_embedding=True) == 8 * TABLE.elements


def test_projected_states_are_a_rank_wide() -> None:
    assert of("galore-adamw", BIG, 2, rank=128) == 2 * 2 * 128 * 14336 + 2 * 128 * 4096
    assert of("apollo", BIG, 2, rank=128) == 2 * 2 * 128 * 14336


def test_the_foreach_step_needs_one_more_copy_of_a_state() -> None:
    foreach = estimate(job(optimizer={"implementation": "foreach"})).by_part("step.update")["optimizer"]
    fused = estimate(job(optimizer={"implementation": "fused"})).by_part("step.update")["optimizer"]
    assert foreach == pytest.approx(1.5 * fused, rel=0.001)


def test_stepping_in_backward_keeps_one_gradient() -> None:
    ledger = estimate(job(optimizer={"in_backward": True, "name": "adamw-8bit"}))
    assert max(ledger.by_part(m).get("gradients", 0) for m in ledger.allocated_by_moment()) == 2 * 8000 * 512


def test_few_layers_at_a_time_train_little() -> None:
    whole, lisa, badam = (estimate(job(method={"kind": kind})).by_part("step.update") for kind in ("full", "lisa", "badam"))
    assert badam["optimizer"] < lisa["optimizer"] < whole["optimizer"]
    assert badam["weights"] == whole["weights"]
