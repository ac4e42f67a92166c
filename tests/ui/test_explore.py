"""Explore's other views: layouts over many cards, what fits at most, and two jobs side by side."""

from pathlib import Path

from streamlit.testing.v1 import AppTest

from advisor.cards import catalogue
from advisor.job import read_job
from advisor.render import words
from advisor.views.comparing import differences

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


def page(view: str, **parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/explore.py")
    at.session_state["explore-view"] = view
    for name, value in {"v": "1", **parameters}.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


JOB = {"model.name": "meta-llama/Llama-3.1-8B", "method.kind": "full", "batch.micro_batch": "1", "batch.seq_len": "4096", "hardware.gpu": "h100-80gb"}


def test_layouts_of_many_cards_fitting_first() -> None:
    at = page("Layouts", **JOB, **{"framework.name": "megatron-lm", "hardware.gpus_per_node": "8"})
    found = at.dataframe[0].value
    assert len(found) > 3 and found["Verdict"].iloc[0].startswith("✓")
    assert (found["Tensor"] * found["Context"] * found["Pipeline"] * found["Data"] == 8).all()
    assert any("fastest that fits" in m.value for m in at.markdown)


def test_one_card_has_no_layout() -> None:
    assert any("nothing to lay out" in m.value for m in page("Layouts", **JOB).markdown)


def test_what_fits_at_most_is_said_beside_the_map() -> None:
    at = page("Batch × sequence", **{**JOB, "activations.checkpointing": "full", "method.kind": "lora"})
    assert any("Up to the card's edge" in m.value and "sequence length" in m.value for m in at.markdown)


def test_a_kept_run_is_compared_with_the_changed_one() -> None:
    at = page("Compare", **JOB, **{"activations.checkpointing": "none"})
    at.button(key="explore-keep").click().run()
    at.session_state["explore-view"] = "Compare"
    at.button_group(key="explore:activations.checkpointing").set_value("full").run()
    assert not at.exception
    said = "\n".join(m.value for m in at.markdown)
    assert "Checkpointing" in said and "Needed together" in said and "Activations" in said


def test_only_what_differs_is_listed() -> None:
    one = read_job({"version": 1, "batch": {"micro_batch": 1, "seq_len": 8}})
    assert differences(one, one.but(batch={"micro_batch": 2})) == [("batch.micro_batch", 1, 2)]
    assert differences(one, one) == []


def test_each_technique_says_what_it_does_to_memory_computing_and_communication() -> None:
    at = page("Techniques", **JOB, **{"activations.checkpointing": "none", "parallel.strategy": "fsdp2", "parallel.shard": "8"})
    found = at.dataframe[0].value.set_index("Change")
    assert (found["Saves"].diff().dropna() <= 0).all(), "the largest saving first"
    checkpointing = found.loc[words.title("techniques", "gradient-checkpointing")]
    assert checkpointing["Saves"] > 1 and checkpointing["Computing"] > 5 and checkpointing["Communication"] <= 0  # more of it hides behind recomputing
    assert found["Communication"].abs().max() > 1, "cutting matrices over cards makes them talk"
    refused = next(e for e in at.expander if "Cannot be used here" in e.label)
    assert "| Change | Why not |" in refused.markdown[0].value


def test_the_probe_of_a_run_is_a_view_of_explore() -> None:
    at = page("Probe", **JOB)
    assert any(b.label == "Probe this run" for b in at.button) or any("torch" in m.value for m in at.markdown)


def test_the_cards_that_hold_the_run_come_first() -> None:
    found = page("Which cards", **JOB).dataframe[0].value
    found = found[~found["Verdict"].str.contains("see below")]
    verdicts = found["Verdict"].tolist()
    assert verdicts[0].startswith("✓") and verdicts == sorted(verdicts, key=lambda v: ["✓", "~", "✗", "?"].index(v[0]))
    fitting = found[found["Verdict"] == verdicts[0]]["Usable"].tolist()
    assert fitting == sorted(fitting) and len(fitting) > 1


def test_cards_of_another_maker_are_shown_to_those_who_ask() -> None:
    at = page("Which cards", **JOB)
    usual = set(at.dataframe[0].value["Card"])
    assert usual and {card.vendor for card in catalogue().values() if card.name in usual} == {"nvidia"}
    at.toggle(key="explore-makers").set_value(True).run()
    assert not at.exception
    assert {card.vendor for card in catalogue().values() if card.name in set(at.dataframe[0].value["Card"])} > {"nvidia", "amd"}
    other = page("Which cards", **{**JOB, "hardware.gpu": "mi300x-192gb"}).dataframe[0].value
    assert "MI300X" in " ".join(other["Card"]) and not usual & set(other["Card"]), "who has AMD cards is shown AMD cards"


def test_a_card_that_has_the_memory_and_not_the_arithmetic_is_not_recommended() -> None:
    at = page("Which cards", **{**JOB, "model.name": "Qwen/Qwen2.5-0.5B", "precision.compute": "bf16", "batch.seq_len": "512", "method.kind": "lora"})
    found = at.dataframe[0].value.set_index("Card")
    assert "see below" not in found["Verdict"].iloc[0], "what cannot compute it does not come first"
    name = next(name for name in found.index if name.startswith("V100"))
    assert found["Verdict"][name].startswith("✓") and "see below" in found["Verdict"][name]
    assert any(name in line and "no bf16 arithmetic" in line for m in at.markdown for line in m.value.splitlines()), "the whole reason, not cut by a cell"
    smallest = next(m.value for m in at.markdown if "smallest card that holds it" in m.value)
    assert not any(word in smallest for word in ("V100", "T4", "P100", "2080", "8000"))


def test_an_opened_part_has_its_formulas_and_the_causes_about_it() -> None:
    at = page("By phase", **JOB)
    at.button_group(key="explore-part").set_value("logits").run()
    assert not at.exception
    assert any("vocabulary (128,256)" in c.value for c in at.code)
    assert [p.proto.popover.label for p in at.get("popover") if "about this part" in p.proto.popover.label], "the rules that touch it"
    assert not at.get("page_link")
    at.session_state["explore-part:causes:logits"] = True  # opened
    at.run()
    assert not at.exception and len(at.get("page_link")) > 3
