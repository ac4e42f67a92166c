"""The Dockerfile, as far as it can be held without Docker: what it copies is there and enough, and what it names exists."""

import json
import re
import shlex
import tomllib
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lines(instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


def copied() -> set[str]:
    return {source for line in lines("COPY") for source in shlex.split(line)[:-1]}


def test_what_is_copied_is_there_and_ignored_by_nobody() -> None:
    ignored = {line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()}
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source not in ignored, source


def test_everything_that_the_wheel_is_made_of_is_copied() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], PROJECT["project"]["readme"], "pyproject.toml", "constraints.txt"}
    assert needed <= copied()


def test_the_extras_that_it_names_exist() -> None:
    named = {extra for found in re.findall(r"\[([a-z,]+)\]'", (ROOT / "Dockerfile").read_text()) for extra in found.split(",")}
    assert named and named <= set(PROJECT["project"]["optional-dependencies"])
    assert not any(word.startswith(("torch", "transformers")) for word in PROJECT["project"]["dependencies"]), "the small image has no torch"


@pytest.mark.parametrize(
    ("base", "asked"), [(None, "/_stcore/health"), ("", "/_stcore/health"), ("advisor", "/advisor/_stcore/health"), ("/a/b/", "/a/b/_stcore/health")]
)
def test_its_health_is_asked_where_the_server_answers(base: str | None, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown path answers 200 too, and below a path that is set only what is below it answers at all."""
    (health,) = lines("HEALTHCHECK")
    _, _, code = json.loads(health[health.index("[") :])
    urls: list[str] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: urls.append(url))
    monkeypatch.delenv("STREAMLIT_SERVER_BASE_URL_PATH", raising=False)
    if base is not None:
        monkeypatch.setenv("STREAMLIT_SERVER_BASE_URL_PATH", base)
    exec(code, {})
    assert urls == [f"http://127.0.0.1:{lines('EXPOSE')[0]}{asked}"]


def test_it_runs_as_nobody_special_and_is_asked_at_the_port_that_it_serves() -> None:
    (entry,), (health,), (port,) = lines("ENTRYPOINT"), lines("HEALTHCHECK"), lines("EXPOSE")
    assert f'"--port", "{port}"' in entry and '"--address", "0.0.0.0"' in entry
    assert f":{port}'" in health
    order = [line.partition(" ")[0] for line in LINES]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name == "RUN"), "nothing is installed as that user"
    assert lines("USER") == ["advisor"] and any("useradd" in line and "--uid 1000" in line for line in lines("RUN"))
