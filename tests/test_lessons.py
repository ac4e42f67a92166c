"""Every lesson's figure and cause come from the engine, and what its text says is so."""

import pytest

from advisor import knowledge, lessons
from advisor.ledger import PARTS, PHASES

NAMES = lessons.names()


def test_there_are_eight() -> None:
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_has_a_figure_and_its_failure_the_cause_that_the_engine_finds(name: str) -> None:
    found = lessons.lesson(name)
    ask, failure = found.ask, found.failure
    assert set(ask.wanted) <= set(PARTS) and ask.phase in (None, *PHASES)
    true, _, held = lessons.figure(ask)
    assert true > 0.5 and held
    assert failure.cause in failure.choices and len(set(failure.choices)) == len(failure.choices)
    for cause in failure.choices:
        assert knowledge.path("causes", f"{cause}.md").is_file(), cause
    assert lessons.diagnosed(failure).findings[0].cause == failure.cause


def test_predictions_are_judged_by_their_distance() -> None:
    assert [lessons.judged(p, 10) for p in (10, 12.5, 19, 5, 4.9, 21, 0)] == ["right", "right", "rough", "rough", "far", "far", "far"]
