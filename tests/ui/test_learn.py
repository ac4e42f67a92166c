"""Learn: the figure only after a prediction, the failure judged by the engine, progress in the address."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor import lessons
from advisor.arithmetic import estimate
from advisor.evidence import Evidence
from advisor.knowledge import KnowledgeError
from advisor.run import resolve
from advisor.share import link, open_link

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/learn.py")
    for name, value in parameters.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def press(at: AppTest, key: str) -> AppTest:
    at.button(key=key).click().run()
    assert not at.exception
    return at


def test_a_lesson_to_its_end() -> None:
    name = lessons.names()[2]
    at = press(page(), f"learn-open:{name}")
    assert not at.success
    press(at, f"learn-reveal:{name}")
    assert not at.success and "figure first" in at.info[0].value
    at.number_input(key=f"learn-guess:{name}").set_value(15.0).run()
    press(at, f"learn-reveal:{name}")
    assert "You said 15 GiB" in at.success[0].value
    press(at, f"learn-check:{name}")
    assert "Choose" in at.info[-1].value
    failure = lessons.lesson(name).failure
    at.radio(key=f"learn-choice:{name}").set_value(next(c for c in failure.choices if c != failure.cause)).run()
    press(at, f"learn-check:{name}")
    assert at.warning and at.session_state.learned == {"3"}
    at.radio(key=f"learn-choice:{name}").set_value(failure.cause).run()
    press(at, f"learn-check:{name}")
    assert len(at.success) == 2 and at.session_state.learned == {"3", "3f"}


def test_a_figure_far_off_is_no_success_and_the_run_can_be_moved_in_explore() -> None:
    name = lessons.names()[0]
    at = page(lesson=name)
    at.number_input(key=f"learn-guess:{name}").set_value(0.5).run()
    press(at, f"learn-reveal:{name}")
    assert not at.success and "You said 0.5 GiB" in at.info[0].value
    assert any("in Explore" in e.proto.label and "batch.seq_len=2048" in e.proto.query_string for e in at.get("page_link"))


@pytest.mark.parametrize("name", lessons.names())
def test_the_run_of_a_lesson_is_the_same_in_explore(name: str) -> None:
    run = lessons.run_of(lessons.lesson(name).ask)
    there = resolve(open_link(link(run.stated, Evidence()).query).job)
    assert estimate(there).peak().bytes == estimate(run).peak().bytes


def test_every_lesson_opens_by_its_address_with_progress() -> None:
    for name in lessons.names():
        at = page(lesson=name, done="1,2f,99,x")
        assert at.session_state.learned == {"1", "2f"}
        assert lessons.lesson(name).title in at.header[0].value


def test_an_unknown_lesson_is_the_overview() -> None:
    assert page(lesson="../secret").get("progress")


def test_a_recorded_step_is_shown_after_the_prediction_and_can_be_scrubbed() -> None:
    name = lessons.names()[0]
    at = page(lesson=name)
    at.number_input(key=f"learn-guess:{name}").set_value(60.0).run()
    press(at, f"learn-reveal:{name}")
    slider = at.slider(key=f"learn-step:{name}")
    assert any("alive" in m.value for m in at.markdown)
    slider.set_value(1).run()
    assert not at.exception
    assert any("moment 1 of" in m.value for m in at.markdown)


def test_a_failure_of_the_first_week_counts_as_a_step() -> None:
    at = press(page(), "learn-open:week-2")
    at.radio(key="learn-choice:week-2").set_value(lessons.first_week()[1].cause).run()
    press(at, "learn-check:week-2")
    assert at.success and at.session_state.learned == {"w2"}
    assert page(lesson="week-3", done="w2").session_state.learned == {"w2"}


def test_a_recorded_step_that_cannot_be_read_leaves_the_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise KnowledgeError(f"lessons/{name}: no recorded step can be read")

    monkeypatch.setattr("advisor.lessons.recorded", broken)
    name = lessons.names()[0]
    at = page(lesson=name)
    at.number_input(key=f"learn-guess:{name}").set_value(60.0).run()
    press(at, f"learn-reveal:{name}")
    assert any("no recorded step" in w.value for w in at.warning)
