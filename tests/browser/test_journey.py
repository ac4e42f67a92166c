"""The journey in a real browser: paste, verdict, tick, the link in a second browser, the same verdict; phone width, dark, keyboard.

Needs Debian's Chromium and Playwright; without them the tests are skipped and say how to get them.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from advisor.knowledge import folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
ROOT = Path(__file__).resolve().parents[2]
SAMPLE = yaml.safe_load((folder("knowledge") / "samples" / "3-dpo-zero2.yaml").read_text())["files"]
SECONDS = 30_000  # milliseconds to wait for anything


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "advisor.cli", "ui", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
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


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def open_page(browser: "playwright.Browser", url: str, width: int = 1400, scheme: str = "light") -> "playwright.Page":
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.set_default_timeout(SECONDS)
    page.goto(url)
    page.wait_for_selector("h1")
    return page


def diagnosed(page: "playwright.Page") -> str:
    page.get_by_text("Take it with you").wait_for()
    return str(page.get_by_test_id("stAlert").first.inner_text())


def first_cause(page: "playwright.Page") -> str:
    page.get_by_text("Why, most likely first").wait_for()
    return str(page.locator("[data-testid=stExpander]", has_text="likely").first.locator("summary").inner_text())


def paste(page: "playwright.Page") -> str:
    page.get_by_role("textbox", name="Paste the error").fill("\n\n".join(SAMPLE.values()))
    page.get_by_role("button", name="Diagnose", exact=False).last.click()
    return diagnosed(page)


def test_paste_verdict_link_same_verdict(address: str, browser: "playwright.Browser") -> None:
    page = open_page(browser, address)
    said, cause = paste(page), first_cause(page)
    assert "Does not fit" in said
    page.wait_for_url("**/?v=1*")
    link = page.url
    assert "error.allocated" in link and len(link) < 2_100
    second = open_page(browser, link)
    assert diagnosed(second) == said
    assert first_cause(second) == cause
    assert second.url == link


def test_ticking_changes_the_sum(address: str, browser: "playwright.Browser") -> None:
    page = open_page(browser, address)
    paste(page)
    total = page.get_by_text("ticked").last
    before = total.inner_text()
    page.get_by_role("checkbox").first.locator("xpath=ancestor::label").click()
    page.wait_for_function("before => ![...document.querySelectorAll('p')].some(p => p.innerText === before)", arg=before)
    assert page.get_by_test_id("stException").count() == 0


def test_explore_by_link_and_by_slider(address: str, browser: "playwright.Browser") -> None:
    page = open_page(browser, f"{address}/explore?v=1&model.name=Qwen/Qwen2.5-7B&batch.micro_batch=4&batch.seq_len=2048&hardware.gpu=h100-80gb")
    page.get_by_text("Needed on one card").wait_for()
    figure = page.get_by_test_id("stMetricValue").first
    before = figure.inner_text()
    slider = page.get_by_role("slider", name="Sequence length")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_url("**batch.seq_len=4096**")
    page.wait_for_function("before => document.querySelector('[data-testid=stMetricValue]').innerText !== before", arg=before)


@pytest.mark.parametrize("path", ["", "explore", "accuracy", "library"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone(address: str, browser: "playwright.Browser", path: str, scheme: str, tmp_path: Path) -> None:
    page = open_page(browser, f"{address}/{path}", width=400, scheme=scheme)
    page.wait_for_timeout(2_000)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.get_by_test_id("stException").count() == 0
    page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_the_keyboard_is_enough(address: str, browser: "playwright.Browser") -> None:
    page = open_page(browser, address)
    box = page.get_by_role("textbox", name="Paste the error")
    page.get_by_text("Or look at a real one").wait_for()
    page.get_by_test_id("stFileUploader").wait_for()
    button = page.get_by_test_id("stBaseButton-primary")
    button.wait_for()
    box.focus()
    page.keyboard.insert_text(SAMPLE["error.txt"])
    for _ in range(30):
        page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    assert "Does not fit" in diagnosed(page)


UNNAMED = """() => {
  const named = e => (e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.innerText || e.title || (e.labels && e.labels.length)
    || e.closest('label') || '').toString().length > 0 || !!e.closest('[aria-label]');
  return [...document.querySelectorAll('[data-testid=stMain] :is(button, input, textarea, select, [role=button], [role=combobox], img)')]
    .filter(e => e.type !== 'hidden' && e.offsetParent !== null && !(e.tagName === 'IMG' ? e.hasAttribute('alt') : named(e)))
    .map(e => e.outerHTML.slice(0, 160));
}"""


@pytest.mark.parametrize(
    "path", ["", "explore", "plan", "probe", "learn", "learn?lesson=3-copies-and-layouts", "accuracy", "library", "report?id=AAAAAAAAAAAA"]
)
def test_a_page_has_ordered_headings_names_and_no_sideways_scroll_on_a_phone(browser: "playwright.Browser", address: str, path: str) -> None:
    page = open_page(browser, f"{address}/{path}", width=400)
    page.wait_for_function("() => !document.querySelector('[data-testid=stStatusWidget]')")
    levels = page.evaluate("() => [...document.querySelectorAll('[data-testid=stMain] :is(h1,h2,h3,h4,h5,h6)')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth") <= 400
    assert page.evaluate(UNNAMED) == []
    page.context.close()
