"""Saved reports in a real browser: what came of it, with the new error; two servers on one PostgreSQL."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from browser.waiting import address_and_token, follow, whole

pytestmark = pytest.mark.browser
Open = Callable[..., Any]
RUN = (
    "?v=1&model.name=Qwen/Qwen2.5-7B&method.kind=full&batch.micro_batch=4&batch.seq_len=4096&hardware.gpu=a100-80gb"
    "&error=gpu-memory&error.allocated=77.03GiB&error.requested=2.50GiB&error.capacity=79.10GiB"
)
AGAIN = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB. GPU 0 has a total capacity of 79.10 GiB of which 3.15 GiB is free. "
    "Of the allocated memory 71.20 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated. HF_TOKEN=hf_abcdefghijklmnopqrst"
)


def save(page: Any) -> tuple[str, str]:
    page.get_by_text("Take it with you").wait_for()
    whole(page)
    page.get_by_role("button", name=re.compile("Save")).last.click()
    page.get_by_role("button", name="Save this diagnosis").click()
    return address_and_token(page)


def verdict(page: Any) -> str:
    return str(page.get_by_test_id("stAlert").first.inner_text())


def test_not_fixed_and_here_is_the_new_error(open_page: Open) -> None:
    address, _ = save(open_page(RUN))
    page = open_page(address)
    page.get_by_text("Did it help?").wait_for()
    page.get_by_text("It is not fixed").click()
    page.get_by_role("button", name="Add the new error").click()
    page.get_by_text("Paste the new error first").wait_for()
    page.get_by_role("textbox", name="The new error").fill(AGAIN)
    page.get_by_role("button", name="Add the new error").click()
    page.get_by_text("Written down").wait_for()

    owner = open_page(address)  # whoever has the address sees it, masked, and goes on from there
    owner.get_by_text("Not fixed, and there is a new error").wait_for()
    owner.get_by_text("The new error of").click()
    owner.get_by_test_id("stCode").filter(has_text="9.28 GiB").wait_for()
    assert "hf_abc" not in owner.content()
    follow(owner, "Diagnose new error 1", "**error.allocated=71.20GiB**")
    owner.get_by_text("Take it with you").wait_for()
    assert "batch.micro_batch=4" in owner.url, "the settings of the report"
    owner.get_by_text("71.2 GiB").first.wait_for()


def test_two_servers_on_one_database(open_page: Open, instances: tuple[str, str]) -> None:
    one, other = instances
    page = open_page(f"{one}/{RUN}")
    address, token = save(page)
    assert address.startswith(one)
    there = address.replace(one, other)

    second = open_page(there)
    second.get_by_text("Did it help?").wait_for()
    assert verdict(second) == verdict(page)
    second.get_by_role("button", name="It is fixed").click()
    second.get_by_text("Written down").wait_for()

    first = open_page(address)
    first.get_by_text(re.compile("^Fixed")).wait_for()
    first.get_by_text("Delete this report").click()
    first.get_by_role("textbox", name="The token").fill("not the token")
    first.keyboard.press("Enter")
    first.get_by_role("button", name="Delete it").click()
    first.get_by_text("Not deleted").wait_for()
    first.get_by_role("textbox", name="The token").fill(token)
    first.keyboard.press("Enter")
    first.get_by_role("button", name="Delete it").click()
    first.get_by_text("The report is deleted").wait_for()

    gone = open_page(there)
    gone.get_by_text("There is no report of this id").wait_for()
