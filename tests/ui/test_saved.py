"""Saving a diagnosis from the page, opening it by its id, saying what happened, deleting it."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor import database, store
from advisor.views import saving

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(database.VARIABLE, str(tmp_path / "reports.db"))
    found = database.configured()
    assert found is not None
    return found


def texts(at: AppTest) -> str:
    return "\n".join(str(e.value) for kind in ("markdown", "caption", "error", "warning", "success", "info", "code") for e in getattr(at, kind))


def diagnosed() -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.button(key="sample:1-loss-qlora").click().run()
    assert not at.exception
    return at


def opened(id: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/report.py")
    at.query_params["id"] = id
    at.run()
    assert not at.exception
    return at


def saved(at: AppTest) -> tuple[str, str]:
    at.button(key="save:go").click().run()
    assert not at.exception
    address = next(c.value for c in at.code if "report?id=" in c.value)
    token = at.code[[c.value for c in at.code].index(address) + 1].value
    return address.partition("id=")[2], token


def test_saving_is_off_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(database.VARIABLE, raising=False)
    at = diagnosed()
    assert "Saving is off" in texts(at)
    assert "Saving is off" in texts(opened("AAAAAAAAAAAA"))


def test_a_diagnosis_is_saved_with_its_text_opened_answered_and_deleted(url: str) -> None:
    at = diagnosed()
    at.checkbox(key="save:text").check().run()
    id, token = saved(at)
    assert token not in texts(at.run()), "the token is shown once"
    kept = store.find(database.connected(url), id)
    assert kept is not None and kept.body["texts"]

    other = opened(id)
    assert other.error[0].value.startswith(at.error[0].value[:20])
    other.text_area(key="report-error").input("CUDA out of memory. Tried to allocate 1.00 GiB. HF_TOKEN=hf_abcdefghijklmnopqrst").run()
    other.button(key="report-not-fixed").click().run()
    other.button(key="report-fixed").click().run()
    assert not other.exception
    said = texts(other)
    assert "Not fixed, and there is a new error" in said and "hf_abc" not in said

    other.text_input(key="report-token").input("wrong").run()
    other.button(key="report-delete").click().run()
    assert "Not deleted" in other.warning[0].value
    other.text_input(key="report-token").input(token).run()
    other.button(key="report-delete").click().run()
    assert "deleted" in other.info[0].value
    assert "no report of this id" in opened(id).info[0].value


def test_what_was_put_right_on_the_page_is_still_so(url: str) -> None:
    at = diagnosed()
    at.session_state["chip:hardware.nodes"] = True
    at.run().number_input(key="fact:hardware.nodes").set_value(2).run()
    at.checkbox(key="save:text").check().run()
    id, _ = saved(at)
    kept = store.find(database.connected(url), id)
    assert kept is not None and kept.body["stated"] == {"hardware.nodes": 2}
    assert opened(id).session_state["report-shown"] == id


def test_too_much_in_an_hour_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PER_HOUR", 1)
    monkeypatch.setattr(saving, "sender", lambda: "one")  # a test has no address
    at = diagnosed()
    saved(at)
    at.button(key="save:go").click().run()
    assert not at.exception
    assert any("last hour" in w.value for w in at.warning)


@pytest.mark.parametrize(
    ("here", "page", "expected"),
    [
        ("https://gpu.example.org/", "report", "https://gpu.example.org/report"),
        ("https://gpu.example.org/advisor", "report", "https://gpu.example.org/advisor/report"),
        ("https://gpu.example.org/advisor/report", "", "https://gpu.example.org/advisor/"),
        ("http://10.0.0.7:8501/explore", "report", "http://10.0.0.7:8501/report"),
        ("https://gpu.example.org", "", "https://gpu.example.org/"),
    ],
)
def test_an_address_to_share_keeps_the_path_of_a_proxy(monkeypatch: pytest.MonkeyPatch, here: str, page: str, expected: str) -> None:
    from types import SimpleNamespace

    from advisor.views import address

    monkeypatch.setattr(address.st, "context", SimpleNamespace(url=here))
    assert address.absolute(page) == expected


def test_an_address_that_nobody_else_can_open_says_so(url: str) -> None:
    at = diagnosed()
    assert texts(at).count("only on your computer") == 1  # the link's
    saved(at)
    assert texts(at).count("only on your computer") == 2
