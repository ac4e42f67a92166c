"""A server that asks for a login shows no page without one, and says what it lacks; any other server asks nobody."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor.views import login

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


class User:
    def __init__(self, logged_in: bool | None) -> None:
        if logged_in is not None:
            self.is_logged_in = logged_in


@pytest.mark.parametrize(("logged_in", "shown"), [(None, "Nobody can log in"), (False, "Log in"), (True, "Why did the run die?")])
def test_where_it_is_asked_for(logged_in: bool | None, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_LOGIN", "1")
    monkeypatch.setattr(login.st, "user", User(logged_in))
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    assert not at.exception
    said = [t.value for t in at.title] + [b.label for b in at.button] + [e.proto.title for e in at.error]
    assert shown in said
    assert (len(at.text_area) == 1) is bool(logged_in), "no page before the login"


def test_elsewhere_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVISOR_LOGIN", raising=False)
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    assert [t.value for t in at.title] == ["Why did the run die?"]
