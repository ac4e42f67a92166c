"""Every page, wide and on a phone, light and dark: no serious violation that axe-core finds, ordered headings, named controls, no sideways scroll."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser.waiting import whole

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
PAGES = sorted(p.stem for p in (Path(__file__).resolve().parents[2] / "pages").glob("*.py"))
PATHS = [
    *("" if name == "diagnose" else "report?id=AAAAAAAAAAAA" if name == "report" else name for name in PAGES),
    "learn?lesson=1-anatomy-of-a-step",
    "learn?lesson=week-2",
    "library?kind=techniques&page=gradient-checkpointing",
    "library?kind=causes&page=logits",
    "library?kind=models",
    "library?kind=cards&page=h100-80gb",
    "library?kind=frameworks&page=trl",
    "library?kind=guides&page=for-a-team",
    "events?example=1",
    "plan?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=lora&batch.seq_len=2048&batch.total_tokens=1000000&price.h100-80gb=2.5",
    "?v=1&model.name=meta-llama/Llama-3.1-8B&method.kind=full&batch.micro_batch=4&batch.seq_len=4096&hardware.gpu=a100-80gb&error=gpu-memory&error.allocated=77GiB",
]
SEEN = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}


UNNAMED = """() => {
  const named = e => (e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent || e.title || (e.labels && e.labels.length)
    || e.closest('label') || '').toString().length > 0 || !!e.closest('[aria-label]');
  return [...document.querySelectorAll('[data-testid=stMain] :is(button, input, textarea, select, [role=button], [role=combobox], img)')]
    .filter(e => e.type !== 'hidden' && e.offsetParent !== null && !(e.tagName === 'IMG' ? e.hasAttribute('alt') : named(e)))
    .map(e => e.outerHTML.slice(0, 160));
}"""


CUT = """() => [...document.querySelectorAll('[data-testid=stMetricLabel] p, [data-testid=stMetricValue] > div')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"""


def serious(page: Any, base: Any) -> list[str]:
    """What axe-core finds, as sentences with the elements; what it finds is looked at again: a figure may have been fading in just then."""
    page.evaluate(base.AXE_SCRIPT)
    bad: list[Any] = []
    for _ in range(3):
        found = page.evaluate("options => axe.run(document, options)", SEEN)["violations"]
        bad = [v for v in found if v["impact"] in ("serious", "critical")]
        if not bad:
            break
        whole(page)
    return [f"{v['id']}: {v['help']}\n  " + "\n  ".join(n["html"][:200] for n in v["nodes"][:4]) for v in bad]


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_for_everyone(open_page: Open, path: str) -> None:
    base = pytest.importorskip("axe_playwright_python.base", reason="no axe-core: pip install axe-playwright-python")
    page = open_page(path, width=400, scheme="dark")
    whole(page)
    levels = page.evaluate("() => [...document.querySelectorAll('[data-testid=stMain] :is(h1,h2,h3,h4,h5,h6)')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth") <= 400
    assert page.evaluate(UNNAMED) == []
    assert page.locator("[data-testid=stMain] [data-testid=stBaseButton-primary]:visible").count() <= 1
    assert page.evaluate(CUT) == [], "a tile is cut off"
    assert page.get_by_test_id("stException").count() == 0
    assert serious(page, base) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_function("() => getComputedStyle(document.querySelector('.stApp')).backgroundColor === 'rgb(255, 255, 255)'")
    whole(page)
    assert serious(page, base) == []
    assert open_page.wrong == [], "the console is clean"


@pytest.mark.parametrize("view", ["Batch × sequence", "Which cards", "Techniques", "Layouts", "Compare", "Probe"])
def test_each_view_of_explore_is_for_everyone(open_page: Open, view: str) -> None:
    base = pytest.importorskip("axe_playwright_python.base", reason="no axe-core: pip install axe-playwright-python")
    page = open_page("explore", width=400, scheme="dark")
    page.get_by_role("tab", name=view).click()
    whole(page)
    page.wait_for_function("name => [...document.querySelectorAll('[role=tab]')].some(t => t.ariaSelected === 'true' && t.innerText === name)", arg=view)
    assert page.get_by_test_id("stException").count() == 0
    assert serious(page, base) == []
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth") <= 400


@pytest.mark.parametrize(
    ("path", "view"),
    [
        ("explore", "Which cards"),
        ("explore", "Techniques"),
        ("explore", "Layouts"),
        ("plan", ""),
        ("plan?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=lora&batch.seq_len=2048&batch.total_tokens=1000000&price.h100-80gb=2.5", ""),
        ("accuracy", ""),
        ("library?kind=cards", ""),
        ("library?kind=models", ""),
        ("library?kind=frameworks", ""),
    ],
)
def test_no_column_of_a_table_is_cut_off_on_a_desk(open_page: Open, path: str, view: str) -> None:
    page = open_page(path)
    if view:
        page.get_by_role("tab", name=view).click()
    page.locator("[data-testid=stDataFrame] .dvn-scroller").wait_for()
    page.wait_for_function("() => [...document.querySelectorAll('.dvn-scroller')].every(e => e.clientWidth > 0 && e.scrollWidth <= e.clientWidth)")


def test_what_is_folded_away_fits_a_phone_too(open_page: Open) -> None:
    page = open_page(width=400)
    page.get_by_role("button", name="Dies in DPO under ZeRO-2").click()
    page.get_by_text("Take it with you").wait_for()
    for name in ("What was understood", "Not counted", "Looked for and not found", "Does not apply"):
        page.locator("[data-testid=stExpander] summary", has_text=name).click()
    page.locator("[data-testid=stExpander] table").first.wait_for()
    whole(page)
    assert page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth") <= 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_diff_of_ones_own_files_is_for_everyone(open_page: Open, scheme: str) -> None:
    base = pytest.importorskip("axe_playwright_python.base", reason="no axe-core: pip install axe-playwright-python")
    page = open_page(scheme=scheme)
    page.get_by_role("button", name="Dies at the loss").click()
    page.get_by_text("As a diff of your own files").click()
    page.locator("[data-testid=stCode] .token.inserted").first.wait_for()
    whole(page)
    assert serious(page, base) == []


def test_an_opened_part_and_a_revealed_figure_are_for_everyone(open_page: Open) -> None:
    base = pytest.importorskip("axe_playwright_python.base", reason="no axe-core: pip install axe-playwright-python")
    page = open_page("explore")
    page.locator("[data-testid=stButtonGroup]").get_by_text("Logits and loss").click()
    page.get_by_role("button", name="Causes that are about this part").click()
    page.locator("[data-testid=stPopoverBody] a").first.wait_for()
    whole(page)
    assert serious(page, base) == []
    page.locator("[data-testid=stPopoverBody] a").first.click()
    page.get_by_text("What cures it, best first").wait_for()

    lesson = open_page("learn?lesson=1-anatomy-of-a-step", width=400, scheme="dark")
    lesson.get_by_role("spinbutton", name="GiB").fill("40")
    lesson.keyboard.press("Enter")
    lesson.get_by_role("button", name="Show the engine's figure").click()
    lesson.get_by_text("Alive now").wait_for()
    whole(lesson)
    assert serious(lesson, base) == []
