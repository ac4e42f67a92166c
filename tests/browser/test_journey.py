"""Whole journeys in a real browser, as a person walks them: paste to verdict, ticks and links, back and forward, phone, dark, keyboard."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from browser.waiting import address_and_token

from advisor.knowledge import folder

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
SAMPLE = yaml.safe_load((folder("knowledge") / "samples" / "3-dpo-zero2.yaml").read_text())["files"]


def diagnosed(page: Any) -> str:
    page.get_by_text("Take it with you").wait_for()
    return str(page.get_by_test_id("stAlert").first.inner_text())


def first_cause(page: Any) -> str:
    page.get_by_text("Why, most likely first").wait_for()
    return str(page.locator("[data-testid=stExpander]", has_text="likely").first.locator("summary").inner_text())


def paste(page: Any) -> str:
    page.get_by_role("textbox", name="Paste the error").fill("\n\n".join(SAMPLE.values()))
    page.get_by_role("button", name="Diagnose", exact=False).last.click()
    return diagnosed(page)


def tick(page: Any, count: int) -> None:
    """Click the plan's first box and wait until so many are said to be ticked."""
    page.get_by_role("checkbox").first.locator("xpath=ancestor::label").click()
    ticked(page, count)


def ticked(page: Any, count: int) -> None:
    page.get_by_text(f"With {count} ticked" if count else "Nothing ticked").wait_for()


def test_paste_tick_link_second_browser_and_back(open_page: Open) -> None:
    page = open_page()
    said, cause = paste(page), first_cause(page)
    assert "Does not fit" in said
    page.wait_for_url("**/?v=1*")
    plain = page.url
    assert "error.allocated" in plain and "ticks" not in plain and len(plain) < 2_100
    assert re.search(r"\w+[=:]", page.get_by_test_id("stCode").first.inner_text()), "the lines to copy"
    ticked(page, 1)
    tick(page, 0)
    page.wait_for_url("**ticks=*")
    changed = page.url

    second = open_page(changed)
    assert diagnosed(second) == said
    assert first_cause(second) == cause
    ticked(second, 0)
    assert second.url == changed

    page.go_back()
    ticked(page, 1)
    page.go_forward()
    ticked(page, 0)
    assert page.get_by_test_id("stException").count() == 0


def test_explore_by_link_and_by_slider(open_page: Open) -> None:
    page = open_page("explore?v=1&model.name=Qwen/Qwen2.5-7B&batch.micro_batch=4&batch.seq_len=2048&hardware.gpu=h100-80gb")
    figure = page.get_by_test_id("stMetricValue").first
    before = figure.inner_text()
    slider = page.get_by_role("slider", name="Sequence length")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_url("**batch.seq_len=4096**")
    page.wait_for_function("before => document.querySelector('[data-testid=stMetricValue]').innerText !== before", arg=before)


def test_the_keyboard_is_enough(open_page: Open) -> None:
    page = open_page()
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


def test_a_lesson_to_its_end_on_a_phone_in_the_dark(open_page: Open) -> None:
    page = open_page("learn", width=400, scheme="dark")
    page.get_by_role("button", name="3. Copies and layouts").click()
    page.get_by_role("spinbutton", name="GiB").fill("15")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show the engine's figure").click()
    page.get_by_text("You said 15 GiB").wait_for()
    page.get_by_text("A second, frozen model is resident").first.click()
    page.get_by_role("button", name="Check my answer").click()
    page.get_by_text("That is it").wait_for()
    page.wait_for_url(re.compile(r"done=3(,|%2C)3f"))
    again = open_page(page.url)
    again.get_by_role("button", name="All lessons").click()
    again.get_by_text("2 of 22 steps done").wait_for()


def test_saved_opened_answered_and_deleted(open_page: Open) -> None:
    page = open_page()
    said = paste(page)
    page.get_by_role("button", name="Save", exact=False).last.click()
    page.get_by_text("Save the pasted text with it").click()
    page.get_by_text("Exactly this would be saved").click()
    page.get_by_test_id("stCode").filter(has_text='"texts"').wait_for()
    page.get_by_role("button", name="Save this diagnosis").click()
    page.get_by_text("Its address:").wait_for()
    saved, token = address_and_token(page)
    other = open_page(saved)
    other.get_by_text("Did it help?").wait_for()
    assert other.get_by_test_id("stAlert").first.inner_text() == said
    other.get_by_role("button", name="It is fixed").click()
    other.get_by_text("Written down").wait_for()
    other.get_by_text("Delete this report").click()
    other.get_by_role("textbox", name="The token").fill(token)
    other.keyboard.press("Enter")
    other.get_by_role("button", name="Delete it").click()
    other.get_by_text("The report is deleted").wait_for()


def test_starting_again_empties_the_box_and_going_back_keeps_what_was_pasted(open_page: Open) -> None:
    page = open_page()
    paste(page)
    page.wait_for_url("**/?v=1*")
    page.go_back()
    page.get_by_role("heading", name="Why did the run die?").wait_for()
    box = page.get_by_role("textbox", name="Paste the error")
    assert box.input_value().strip(), "to be added to"
    page.go_forward()
    diagnosed(page)
    page.get_by_text("What you pasted").click()
    page.get_by_role("button", name="Start again").click()
    page.get_by_role("heading", name="Why did the run die?").wait_for()
    page.wait_for_function("() => document.querySelector('textarea').value === ''")


def test_a_snapshot_is_dropped_and_read(open_page: Open, snapshot: bytes) -> None:
    page = open_page()
    page.locator("input[type=file]").set_input_files({"name": "snapshot.pickle", "mimeType": "application/octet-stream", "buffer": snapshot})
    page.get_by_text("snapshot.pickle").first.wait_for()
    page.get_by_role("button", name="Diagnose", exact=False).last.click()
    page.get_by_text("Diagnosis").first.wait_for()
    page.get_by_text("What was understood").wait_for()
    assert page.get_by_test_id("stException").count() == 0


@pytest.mark.torch
def test_a_probe_is_started_found_again_and_cancelled(open_page: Open) -> None:
    pytest.importorskip("torch", reason="no torch: make probe")
    page = open_page("probe?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=full&batch.micro_batch=1&batch.seq_len=512&hardware.gpu=h100-80gb")
    page.get_by_role("button", name="Probe this run").click()
    page.get_by_role("button", name="Cancel the probe").wait_for()
    page.reload()  # the browser comes back with a session of its own, and the work has gone on
    page.get_by_role("button", name="Cancel the probe").click()
    page.get_by_text("The probe was cancelled").wait_for()
    page.get_by_role("button", name="Probe this run").wait_for()


def test_a_measurement_is_brought_back_and_another_browser_reads_it(open_page: Open) -> None:
    import json

    from advisor.diagnosis import diagnose
    from advisor.planner.together import apply_together
    from advisor.render.json import of_ledger
    from advisor.verdict import of_run
    from advisor.views.probing import as_set

    report = diagnose(list(SAMPLE.items()))
    assert report.run is not None
    together = apply_together(report.run, [s.technique for s in report.plan.steps if s.estimated])
    assert together is not None
    run = as_set(together.run)
    ledger, verdict, sentence = of_run(run)
    assert ledger is not None
    data = {**of_ledger(run, ledger, verdict, sentence), "kind": "measured", "outcome": "fits", "device": "NVIDIA A100-SXM4-40GB", "notes": []}
    page = open_page()
    paste(page)
    page.get_by_role("tab", name="Measure").click()
    box = page.get_by_test_id("stFileUploader").filter(has_text="Bring measured.json back").locator("input[type=file]")
    box.set_input_files({"name": "measured.json", "mimeType": "application/json", "buffer": json.dumps(data, default=str).encode()})
    page.get_by_text("With the ticked changes:").wait_for()
    page.wait_for_url("**measured=*")
    other = open_page(page.url)
    other.get_by_text("This is what the link says").wait_for()


def test_an_assumption_is_opened_and_put_right(open_page: Open) -> None:
    page = open_page("?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=full&batch.micro_batch=4&batch.seq_len=4096&hardware.gpu=a100-80gb&error=gpu-memory")
    chip = page.locator("[data-testid=stPopover] button").filter(has_text="Machines").first
    chip.click()
    body = page.locator("[data-testid=stPopoverBody]")
    body.locator("input").first.wait_for()  # it comes with the opening
    body.locator("input").first.fill("2")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.includes('hardware.nodes=2')")
    page.wait_for_function("() => ![...document.querySelectorAll('[data-testid=stPopover] button')].some(b => b.innerText.startsWith('Machines'))")
