"""Plan: cards, hours and cost before the run, and the limits that the reader gives."""

from itertools import pairwise
from pathlib import Path

from streamlit.testing.v1 import AppTest

from advisor.job import read_job
from advisor.views.before_run import options

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"
JOB = {
    "version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "method": {"kind": "full"}, "objective": "sft", "precision": {"weights": "bf16", "compute": "bf16"},
    "optimizer": {"name": "adamw"}, "batch": {"seq_len": 2048, "total_tokens": 10_000_000}, "activations": {"checkpointing": "full", "attention": "flash-2"},
}  # fmt: skip


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/plan.py")
    for name, value in parameters.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def test_more_cards_need_less_on_each_and_less_time() -> None:
    found = sorted(options(read_job(JOB), ["h100-80gb"], {}), key=lambda o: o.count)
    assert len(found) > 1
    for few, many in pairwise(found):
        assert few.hours and many.hours and many.hours[1] < few.hours[1]
        assert many.micro_batch >= few.micro_batch
    assert all(o.hours and o.hours[0] < o.hours[1] < o.hours[2] and o.cost is None for o in found)


def test_the_cheapest_that_fits_comes_first() -> None:
    found = options(read_job(JOB), ["h100-80gb", "a100-80gb"], {"h100-80gb": 3.0, "a100-80gb": 1.0})
    fitting = [o for o in found if o.verdict == "fits"]
    costs = [o.cost[1] for o in fitting if o.cost]
    assert costs == sorted(costs) and len(costs) == len(fitting)


def test_the_page_answers_and_keeps_to_limits() -> None:
    at = page()
    assert at.success and "hours" in at.success[0].value
    at.number_input(key="plan-hours").set_value(0.1).run()
    assert not at.exception
    assert "none keeps" in at.warning[0].value


def test_a_link_brings_prices_and_cards() -> None:
    at = page(**{"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "lora", "batch.seq_len": "2048", "batch.total_tokens": "1000000",
                 "cards": "h100-80gb,no-such-card", "price.h100-80gb": "2.5", "hours": "x"})  # fmt: skip
    assert at.session_state["plan-cards"] == ["h100-80gb"]
    assert "for it" in at.success[0].value


def test_a_model_that_is_too_large_is_said_calmly() -> None:
    at = page(
        **{
            "v": "1",
            "model.name": "deepseek-ai/DeepSeek-V3",
            "method.kind": "full",
            "batch.seq_len": "4096",
            "batch.total_tokens": "1000000",
            "cards": "rtx4090-24gb",
        }
    )
    assert at.info and not at.success
