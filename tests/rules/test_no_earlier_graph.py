"""What earlier steps left cannot fill the card in the first one."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose_reading
from advisor.reading import read
from advisor.rules import observing

SUMS = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n    opt.step()\n    total_loss += loss\n"
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 3.91 GiB (GPU 0; 23.69 GiB total capacity; 15.82 GiB already allocated; 3.31 GiB free; 18.90 GiB reserved in total by PyTorch)"  # fmt: skip # noqa: E501


def confidence(marks: tuple[str, ...]) -> float:
    from msgspec.structs import replace

    reading = read([("train.py", SUMS), ("log.txt", OOM)])
    report = diagnose_reading(replace(reading, evidence=replace(reading.evidence, marks=marks)))
    return next((f.confidence for f in report.findings if f.cause == "retained-graph"), 0.0)


def test_a_graph_of_earlier_steps_falls_far_below_when_the_first_step_failed() -> None:
    before, after = confidence(()), confidence(("seen-first-step",))
    assert before > 0.1 and after < before / 5


@pytest.mark.parametrize("cause", sorted(observing.EARLIER))
def test_it_is_among_what_fails_later(cause: str) -> None:
    assert cause in observing.LATER_ONLY
