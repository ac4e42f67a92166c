"""Plan: cards, hours and cost before the run, and the limits that the reader gives."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from advisor.job import read_job
from advisor.run import resolve

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/plan.py")
    for name, value in parameters.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


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


def test_without_prices_the_fewest_card_hours_come_first_and_storage_is_said() -> None:
    at = page()
    assert "fewest card-hours" in at.success[0].value and "host memory" in at.success[0].value and "checkpoint" in at.success[0].value
    table = at.dataframe[0].value
    assert "Cost" not in table.columns
    sure = table[table["Verdict"] == "Fits"]["Card-hours"].tolist()
    assert sure == sorted(sure)


def test_the_choice_opens_in_explore_as_the_offer_is() -> None:
    at = page(**{"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "full", "batch.micro_batch": "4", "batch.seq_len": "2048",
                 "batch.total_tokens": "1000000", "cards": "a100-80gb"})  # fmt: skip
    linked = next(e for e in at.get("page_link") if "Explore" in e.proto.label)
    assert "hardware.gpu=a100-80gb" in linked.proto.query_string


def test_the_answer_stands_above_the_settings_and_large_numbers_are_grouped() -> None:
    at = page()
    order = [type(e).__name__ for e in at.main]
    assert order.index("Success") < order.index("Selectbox") < order.index("Dataframe")
    assert any(c.value == "100,000,000" for c in at.caption)


def test_offers_with_a_price_are_not_ranked_against_those_without_one() -> None:
    at = page(**{"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "lora", "batch.seq_len": "2048", "batch.total_tokens": "1000000",
                 "price.h100-80gb": "2.5"})  # fmt: skip
    table = at.dataframe[0].value
    known = [cost != "not known" for cost in table[table["Verdict"] == "Fits"]["Cost"]]
    assert any(known) and not all(known) and known == sorted(known, reverse=True)
    assert "H100" in at.success[0].value and "the lowest cost where a price is given" in at.success[0].value
    assert not any("0.00" in time for time in table["Time"]) and any("minutes" in time or "seconds" in time for time in table["Time"])
    assert (table["Card-hours"] > 0).all()


def test_a_box_shows_what_is_assumed_where_nothing_is_stated() -> None:
    at = page(**{"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "lora", "batch.seq_len": "2048", "batch.total_tokens": "1000000"})
    assumed = resolve(read_job({"version": 1, "model": {"name": "Qwen/Qwen2.5-7B"}, "method": {"kind": "lora"}, "batch": {"seq_len": 2048}})).job
    assert at.select_slider(key="plan:method.rank").value == assumed.method.rank
    assert at.session_state["plan:precision.weights"] == assumed.precision.weights


def test_a_budget_without_prices_is_not_ignored() -> None:
    at = page()
    at.number_input(key="plan-budget").set_value(5.0).run()
    assert not at.exception
    assert not at.success, "nothing says yet that the budget is kept"
    assert "budget of 5 is not judged" in at.warning[0].value and "price of a card-hour" in at.warning[0].value
    assert "card-hours" in at.info[0].value
    at.number_input(key="plan-price.b200-180gb").set_value(0.5).run()
    assert not at.exception and not at.warning and "B200" in at.success[0].value
    at.number_input(key="plan-budget").set_value(0.01).run()
    assert not at.success and "none keeps" in at.warning[0].value


def test_a_smaller_micro_batch_is_named_in_the_table() -> None:
    table = page().dataframe[0].value
    cut = table[table["Micro batch"] < 8]
    assert len(cut) and all("on each card in place of 8" in how for how in cut["How"])
    assert not any("in place of" in how for how in table[table["Micro batch"] == 8]["How"])
    assert max(map(len, table["How"])) <= 70, "three lines of its cell: more would be cut off"
    assert not any("Smaller micro batch" in how or how.startswith(";") for how in cut["How"]), "said once"


def test_what_may_be_changed_and_the_room_to_leave_count_and_travel() -> None:
    linked = {"v": "1", "model.name": "Qwen/Qwen2.5-7B", "method.kind": "full", "batch.micro_batch": "4", "batch.seq_len": "2048",
              "batch.total_tokens": "1000000", "cards": "a100-80gb"}  # fmt: skip
    free, bound = page(**linked), page(**linked, allow="without:!(gradient-checkpointing,fsdp,zero-3)")
    changed = {"Checkpoint", "Recompute", "FSDP", "ZeRO"}
    assert any(word in how for how in free.dataframe[0].value["How"] for word in changed)
    assert not any(word in how for how in bound.dataframe[0].value["How"] for word in changed)
    assert any("The plan keeps to your limits: without" in c.value for c in bound.caption)
    roomy = page(**linked)
    roomy.number_input(key="allow:plan:margin").set_value(20.0).run()
    assert not roomy.exception
    table = roomy.dataframe[0].value
    sure = table[table["Verdict"] == "Fits"]
    assert (sure["Usable"] - sure["Needs"] >= 19.9).all()
    assert not (free.dataframe[0].value["Usable"] - free.dataframe[0].value["Needs"] >= 19.9).all()
    assert dict(roomy.query_params)["allow"] in ("margin:20GiB", ["margin:20GiB"])
