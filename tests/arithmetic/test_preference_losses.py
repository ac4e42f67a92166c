"""Preference losses against the same operations run under a tracker of storages (torch 2.13, CPU): bytes of a token and vocabulary entry."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.arithmetic import context
from advisor.arithmetic.logits import of
from advisor.arithmetic.losses import Loss
from advisor.run import resolve
from tests.arithmetic.jobs import job

BF16: dict[str, Any] = {"weights": "bf16", "compute": "bf16", "mixed": "none"}
AUTOCAST: dict[str, Any] = {"weights": "bf16", "compute": "bf16", "mixed": "autocast"}


def loss(objective: str, framework: str, version: str | None, precision: dict[str, Any], rows: int, reference: str = "copy") -> Loss:
    versions = {"transformers": "4.57.1", **({"trl": version} if version else {})}
    made = job(
        objective=objective,
        reference=reference,
        precision=precision,
        batch={"micro_batch": rows, "packed": False},
        framework={"name": framework, "versions": versions},
    )
    return of(context.read(resolve(made)), "full-fp32")


@pytest.mark.parametrize(
    ("objective", "version", "precision", "sequences", "forward", "backward"),
    [
        ("kto", "0.24.0", BF16, 4, 8, 4),  # logits' copies and the rows' log-softmax held, the reference's logits and copies beside them
        ("kto", "0.24.0", AUTOCAST, 4, 16, 16),
        ("kto", "0.16.1", BF16, 4, 10, 4),  # the KL pass's logits are named too
        ("kto", "0.14.0", BF16, 4, 10, 6),  # one log-softmax of all
        ("kto", "1.7.0", BF16, 4, 9, 4),  # the policy's outputs are named; the reference's logits are not copied
        ("orpo", "0.24.0", BF16, 2, 5, 6),
        ("orpo", "0.24.0", AUTOCAST, 2, 8, 18),
        ("orpo", "0.24.0", AUTOCAST, 1, 8, 18),  # logits, the half's log-softmax, a row's exponentials within logsumexp (which the tracker does not see)
        ("orpo", "0.14.0", BF16, 2, 5, 7),
        ("orpo", "0.14.0", AUTOCAST, 2, 10, 14),
    ],
)
def test_trl(objective: str, version: str, precision: dict[str, Any], sequences: int, forward: float, backward: float) -> None:
    found = loss(objective, "trl", version, precision, sequences, reference="none" if objective == "orpo" else "copy")
    assert (found.forward, found.backward) == (pytest.approx(forward), pytest.approx(backward))


def test_without_a_reference_only_the_policy_counts() -> None:
    assert loss("kto", "trl", "0.24.0", BF16, 4, "precomputed").forward == 6  # logits, their copies, the rows' log-softmax
    assert loss("kto", "trl", "0.24.0", AUTOCAST, 4, "precomputed").forward == 8


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_ms_swift_takes_rows_and_names_no_logits(objective: str) -> None:
    sequences = 2 if objective == "dpo" else 4  # four rows
    found = loss(objective, "ms-swift", None, BF16, sequences)
    assert found.forward == pytest.approx(2 * (1 + 1 + 2 / 4))  # kept, the reference's logits, two of its rows
    wide = loss(objective, "ms-swift", None, AUTOCAST, sequences)
    assert wide.forward == pytest.approx(4 + 6)  # kept, the reference's logits while they are widened
    assert (found.backward, wide.backward) == (4, 16)


def test_llama_factory_widens_and_takes_all_rows_at_once() -> None:
    assert loss("dpo", "llama-factory", None, BF16, 2).forward == 16
    assert loss("dpo", "llama-factory", None, BF16, 2, "precomputed").forward == 8
    assert loss("kto", "llama-factory", None, BF16, 2).forward == 20
