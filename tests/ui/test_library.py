"""The library: a search over a shelf, sources that are links and say what was not read again, and what belongs together."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from advisor.cards import catalogue
from advisor.rules.engine import all_rules
from advisor.views.looking import look
from advisor.views.origins import address, linked
from advisor.views.related import causes_of_part, cured_by, cures

APP = Path(__file__).resolve().parents[2] / "advisor" / "ui" / "app.py"


def page(**parameters: str) -> AppTest:
    at = AppTest.from_file(str(APP), default_timeout=60).run()
    at.switch_page("../../pages/library.py")
    for name, value in parameters.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def found(at: AppTest) -> list[str]:
    return [str(b.key).removeprefix("found:") for b in at.button if str(b.key).startswith("found:")]


@pytest.mark.parametrize("kind", ["causes", "cards", "guides"])
def test_everything_is_searched_from_any_shelf(kind: str) -> None:
    at = page(kind=kind)
    at.text_input(key="library-look").input("logits loss").run()
    assert "causes:logits" in found(at) and any(key.startswith("techniques:") for key in found(at))
    at.text_input(key="library-look").input("no such thing xyzzy").run()
    assert found(at) == [] and any("Nothing in the library" in m.value for m in at.markdown)


def test_what_is_found_opens_and_ends_the_search() -> None:
    at = page(kind="cards")
    at.text_input(key="library-look").input("fragmentation").run()
    at.button(key="found:causes:fragmentation").click().run()
    assert not at.exception and at.text_input(key="library-look").value == "" and not found(at)
    assert any("fragment" in h.value.lower() for h in at.header)


@pytest.mark.parametrize("query", ["leak", "expandable", "KV cache", "DDP", "no_grad", "zero"])
def test_a_word_of_the_text_is_found_and_shown_where_it_stands(query: str) -> None:
    hits = look(query)
    assert hits
    for hit in hits:
        for word in query.lower().split():
            assert word in hit.entry.named or word in hit.entry.text.lower()
        assert bool(hit.excerpt) == any(word not in hit.entry.named for word in query.lower().split())


def test_settings_keep_their_underscores_in_an_excerpt() -> None:
    assert any("gpu_memory_utilization" in hit.excerpt for hit in look("utilization"))


@pytest.mark.parametrize("id", ["h100-80gb", "v100-16gb"])
def test_a_card_has_a_page_of_its_own_with_a_source_for_each_figure(id: str) -> None:
    card = catalogue()[id]
    at = page(kind="cards", page=id)
    assert card.name in [h.value for h in at.header]
    said = next(m.value for m in at.markdown if "| Figure |" in m.value).splitlines()
    bandwidth = next(line for line in said if "Memory bandwidth" in line)
    assert "GB/s" in bandwidth and ("Not read again" in bandwidth) == ("bandwidth_gb_s" in card.unverified)
    assert "RECALLED" not in "\n".join(said)
    assert not any("| Figure |" in m.value for m in page(kind="cards", page="no-such-card").markdown)


def test_every_card_that_is_found_opens() -> None:
    at = page(kind="causes")
    at.text_input(key="library-look").input("H100").run()
    at.button(key="found:cards:h100-80gb").click().run()
    assert not at.exception and catalogue()["h100-80gb"].name in [h.value for h in at.header]


def test_a_pages_headings_are_below_its_title() -> None:
    at = page(kind="causes", page="logits")
    texts = "\n".join(m.value for m in at.markdown)
    assert "### What happens" in texts and not any(line.startswith("## ") for line in texts.splitlines())


def test_a_name_stands_before_a_text() -> None:
    hits = look("zero")
    named = ["zero" in h.entry.named for h in hits]
    assert True in named and False in named and named == sorted(named, reverse=True)
    assert {h.entry.kind for h in look("h100")} >= {"cards"} and any(h.entry.page == "trl" for h in look("trl"))
    assert any(h.entry.kind == "models" for h in look("llama-3.1-8b")) and look("") == []


def test_what_was_not_read_again_says_so_in_plain_words() -> None:
    said = "\n".join(m.value for m in page(kind="causes", page="fragmentation").markdown)
    assert "From memory: not read again" in said and "recalled" not in said.lower()
    said = "\n".join(m.value for m in page(kind="techniques", page="gradient-checkpointing").markdown)
    assert "arXiv 2205.05198" in said and "Read: abstract" in said


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("pytorch/pytorch torch/utils/checkpoint.py", "https://github.com/pytorch/pytorch"),
        ("NVIDIA/Megatron-LM megatron/core, and more", "https://github.com/NVIDIA/Megatron-LM"),
        ("ZeRO, arXiv 1910.02054, section 3", "https://arxiv.org/abs/1910.02054"),
        ("transformers 5.24 loss_utils.py", "https://github.com/huggingface/transformers"),
        ("pytorch.org docs, notes/faq", "https://pytorch.org"),
        ("measured with saved-tensor hooks", None),
        ("https://example.org/a b", None),
    ],
)
def test_a_source_has_an_address(source: str, expected: str | None) -> None:
    assert address(source) == expected


def test_each_of_several_sources_is_a_link_and_none_breaks_out_of_it() -> None:
    said = linked("trl a.py; not](https://evil.example) known; litgpt b.py")
    assert said.startswith("[trl a.py](https://github.com/huggingface/trl); ") and said.endswith("; [litgpt b.py](https://github.com/Lightning-AI/litgpt)")
    assert "not\\]" in said


def test_sources_on_a_page_are_links() -> None:
    said = "\n".join(m.value for m in page(kind="techniques", page="gradient-checkpointing").markdown)
    assert "](https://github.com/pytorch/pytorch)" in said and "](https://arxiv.org/abs/2205.05198)" in said


def test_a_cause_has_links_to_its_cures_and_to_what_it_is_mistaken_for() -> None:
    at = page(kind="causes", page="logits")
    assert {"What cures it, best first", "Easily taken for another"} <= {h.value for h in at.subheader}
    assert any("the request is tokens x hidden" in c.value for c in at.caption)
    at.button(key="related:techniques:fused-linear-loss").click().run()
    assert not at.exception and any("Fuse the head" in h.value for h in at.header)
    assert "Causes that it answers" in {h.value for h in at.subheader}


def test_what_belongs_together_belongs_both_ways() -> None:
    for rule in all_rules():
        assert all(rule.id in cured_by(name) for name in cures(rule.id)), rule.id
    assert causes_of_part("logits") and "logits" in causes_of_part("logits") and "fragmentation" in causes_of_part("allocator")
