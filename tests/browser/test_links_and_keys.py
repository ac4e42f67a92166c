"""A link that was tampered with; the whole of Diagnose by keyboard; nothing moves for who asked for less motion."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from browser.waiting import tab_to, whole

from advisor.knowledge import folder

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
SAMPLE = yaml.safe_load((folder("knowledge") / "samples" / "3-dpo-zero2.yaml").read_text())["files"]
RUN = "?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=full&batch.micro_batch=4&batch.seq_len=4096&hardware.gpu=a100-80gb&error=gpu-memory"
SEEN = """() => { const e = document.activeElement, s = getComputedStyle(e), p = getComputedStyle(e.parentElement);
  return e.matches(':focus-visible') && [s, p].some(style => style.outlineStyle !== 'none' || style.boxShadow !== 'none') }"""

# what moves by itself never comes to this: no animation, and the same charts and texts thirty pictures later
AT_REST = """async () => {
  const main = document.querySelector('[data-testid=stMain]');
  const moving = () => document.getAnimations().some(a => a.playState === 'running');
  const seen = () => main.innerHTML + [...main.querySelectorAll('canvas')].map(c => c.toDataURL()).join();
  const before = seen();
  for (let n = 0; n < 30; n++) { if (moving()) return false; await new Promise(done => requestAnimationFrame(done)); }
  return seen() === before;
}"""


def test_a_link_that_was_tampered_with_says_what_was_dropped(open_page: Open) -> None:
    sound = open_page(f"{RUN}&error.allocated=77.03GiB")
    sound.get_by_text("Take it with you").wait_for()
    said = sound.get_by_test_id("stAlert").first.inner_text()

    wrong = "batch.colour=<img src=x onerror=alert(1)>&optimizer.name=__import__('os')&ticks=no-such-change&measured=7"
    page = open_page(f"{RUN}&error.allocated=77.03GiB&{wrong}")
    page.get_by_text("Take it with you").wait_for()
    whole(page)
    dropped = [str(text) for text in page.get_by_test_id("stAlert").filter(has_text="The link held something that could not be used").all_inner_texts()]
    for name in ("batch.colour", "optimizer.name", "measured"):
        assert any(name in text for text in dropped), (name, dropped)
    assert page.locator("[data-testid=stMain] img[src=x]").count() == 0
    assert page.get_by_test_id("stException").count() == 0
    others = [str(text) for text in page.get_by_test_id("stAlert").all_inner_texts() if "could not be used" not in text]
    assert said in others, "what is left is the same diagnosis"
    page.wait_for_function("() => !/colour|__import__/.test(location.search)")  # the address is put right


def test_diagnose_by_keyboard_from_the_paste_to_a_tick_and_a_cause(open_page: Open) -> None:
    page = open_page()
    whole(page)
    tab_to(page, page.get_by_role("textbox", name="Paste the error"))
    page.keyboard.insert_text("\n\n".join(SAMPLE.values()))
    tab_to(page, page.get_by_test_id("stBaseButton-primary"))
    assert page.evaluate(SEEN), "the focus is seen"
    page.keyboard.press("Enter")
    page.get_by_text("Take it with you").wait_for()
    whole(page)

    other = page.locator("[data-testid=stExpander]", has_text="likely").nth(1)
    tab_to(page, other.locator("summary"))
    opened = other.locator("details").get_attribute("open")
    page.keyboard.press("Enter")
    page.wait_for_function("([e, before]) => e.getAttribute('open') !== before", arg=[other.locator("details").element_handle(), opened])

    box = page.get_by_role("checkbox").first
    tab_to(page, box)
    before = box.is_checked()
    page.keyboard.press("Space")
    page.wait_for_url("**ticks=*")
    page.wait_for_function("([box, before]) => box.checked !== before", arg=[box.element_handle(), before])


def test_nothing_moves_by_itself_for_who_asked_for_less_motion(open_page: Open) -> None:
    page = open_page("learn?lesson=1-anatomy-of-a-step")
    page.get_by_role("spinbutton", name="GiB").fill("40")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show the engine's figure").click()
    page.get_by_text("Alive now").wait_for()
    whole(page)
    page.locator("[data-testid=stVegaLiteChart] :is(canvas, svg)").first.wait_for()
    page.wait_for_function(AT_REST)
