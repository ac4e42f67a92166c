"""One server with saving on, and one browser, for all browser tests; without Chromium or Playwright they are skipped and say how to get them."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
POSTGRES = os.environ.get("ADVISOR_TEST_POSTGRES", "")
SECONDS = 30_000  # milliseconds to wait for anything


@contextmanager
def serving(database: str) -> Iterator[str]:
    """A server of its own that saves there; its address once it answers."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "advisor.cli", "ui", "--port", str(port)]
    environment = {**os.environ, "ADVISOR_DATABASE": database}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment)
    where = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"{where}/_stcore/health", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        else:
            pytest.fail("the server did not answer within a minute")
        yield where
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(str(tmp_path_factory.mktemp("saved") / "reports.db")) as where:
        yield where


@pytest.fixture
def instances() -> Iterator[tuple[str, str]]:
    """Two servers on one PostgreSQL database that is made for them."""
    if not POSTGRES:
        pytest.skip("no PostgreSQL server: set ADVISOR_TEST_POSTGRES=postgresql://...")
    psycopg = pytest.importorskip("psycopg", reason="no driver: pip install 'training-memory-advisor[postgres]'")
    name = f"browser_{secrets.token_hex(6)}"
    with psycopg.connect(POSTGRES, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            database = make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
            with serving(database) as one, serving(database) as other:
                yield one, other
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(address: str, browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a path in a browser context of its own (another person's browser); all are closed with the test.

    ``open_page.wrong``: what the browser's console said of errors on all of them, and what the server refused.
    """
    contexts, wrong = [], []

    def opened(path: str = "", width: int = 1400, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        page.goto(path if path.startswith("http") else f"{address}/{path}")
        page.wait_for_selector("h1")
        page.wait_for_function("() => !document.querySelector('[data-testid=stStatusWidget]')")
        return page

    opened.wrong = wrong  # type: ignore[attr-defined]
    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def snapshot() -> bytes:
    """A memory snapshot of a step that fails, in the form that torch writes."""
    from reading.snapshot.building import dumped, training_step
    from reading.snapshot.building import snapshot as of

    return dumped(of(training_step()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser's test that fails runs twice more: how soon a page is drawn anew is the browser's matter. What is wrong is wrong each time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=2))
