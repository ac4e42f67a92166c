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


@pytest.mark.parametrize("failure", lessons.first_week(), ids=lambda f: f.sample)
def test_a_failure_of_the_first_week_has_the_cause_that_the_engine_finds(failure: lessons.Failure) -> None:
    assert failure.cause in failure.choices and len(set(failure.choices)) == len(failure.choices) >= 4
    for cause in failure.choices:
        assert knowledge.path("causes", f"{cause}.md").is_file(), cause
    assert lessons.diagnosed(failure).findings[0].cause == failure.cause


def test_the_recorded_step_adds_up_and_has_the_phases_of_one() -> None:
    for name in NAMES:
        if (file := lessons.lesson(name).step) is not None:
            says, source, frames = lessons.recorded(file)
            assert says and "probe" in source and len(frames) > 50
            assert list(dict.fromkeys(f.phase for f in frames)) == ["forward", "backward", "step"]
            assert {part for f in frames for part in f.parts} <= set(PARTS)
            assert max(frames, key=lambda f: f.bytes).parts["logits"] > 0
            assert any(f.change_bytes > 0 for f in frames) and any(f.change_bytes < 0 for f in frames)
            break
    else:
        pytest.fail("no lesson has a recorded step")
