"""Cards: every value has a source, names find their card, and what a process can use is never more than what the card has."""

import pytest

from advisor import cards, knowledge
from advisor.units import GIB

SOURCED = ("smi_total_bytes", "torch_total_bytes", "bandwidth_gb_s", "link_gb_s")


@pytest.mark.parametrize("entry", knowledge.load_yaml("gpus.yaml")["cards"], ids=lambda e: e["id"])
def test_every_value_has_a_source_and_recalled_ones_are_marked(entry: dict) -> None:
    for name in SOURCED:
        if entry[name] is not None:
            assert entry["sources"].get(name), f"{entry['id']}.{name} has no source"
    if any(rate is not None for rate in entry["tflops_dense"].values()):
        assert entry["sources"].get("tflops_dense")
    for name, source in entry["sources"].items():
        if source and "RECALLED" in source:
            assert name in entry["unverified"], f"{entry['id']}.{name} was recalled and is not marked"


@pytest.mark.parametrize("card", cards.catalogue().values(), ids=lambda c: c.id)
def test_sizes_are_in_order(card: cards.Card) -> None:
    usable, why = card.usable()
    assert why
    assert 0.5 * card.marketed_gb * 1e9 < usable <= card.marketed_gb * GIB * 1.02
    if card.smi_bytes and card.torch_bytes:
        assert card.torch_bytes <= card.smi_bytes * 1.001


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
        ("4090", "rtx4090-24gb"),
        ("Tesla T4", "t4-16gb"),
        ("NVIDIA A10G", "a10g-24gb"),
        ("AMD Instinct MI300X OAM", "mi300x-192gb"),
        ("AMD Instinct MI250X/MI250", "mi250x-64gb"),
        ("MI250", "mi250x-64gb"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada-48gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000-96gb"),
        ("NVIDIA H20", "h20-96gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Tesla K80", "k80-12gb"),
        ("NVIDIA GeForce RTX 2070", "rtx2070-8gb"),
        ("NVIDIA GeForce RTX 2070 SUPER", "rtx2070super-8gb"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti-11gb"),
        ("NVIDIA GeForce GTX 1080", "gtx1080-8gb"),
        ("GeForce GTX TITAN X", "gtxtitanx-12gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", "rtxpro5000-48gb"),
        ("NVIDIA GB10", "gb10-128gb"),
    ],
)
def test_names_as_tools_print_them(name: str, expected: str) -> None:
    found = cards.find(name)
    assert found is not None and found.id == expected


def test_the_total_settles_which_size_is_meant() -> None:
    found = cards.find("A100", total_bytes=round(39.39 * GIB))
    assert found is not None and found.id in {"a100-40gb", "a100-pcie-40gb"}


def test_an_unknown_card_is_not_guessed() -> None:
    assert cards.find("Voodoo 3") is None
    assert cards.find("") is None


@pytest.mark.parametrize("name", ["A100 88GB", "h1000", "V1000", "T400", "L4000", "mi30", "A600", "RTX A60"])
def test_a_number_is_not_cut(name: str) -> None:
    """A name that holds a card's name only by cutting through a number, or says another size, is another card."""
    assert cards.find(name) is None


@pytest.mark.parametrize(
    ("name", "id"),
    [("8xH100", "h100-80gb"), ("Colab's T4 15GB", "t4-16gb"), ("2x4090", "rtx4090-24gb"), ("nvidia_h100", "h100-80gb"), ("3090ti", "rtx3090ti-24gb")],
)
def test_words_around_a_name_do_not_hide_it(name: str, id: str) -> None:
    found = cards.find(name)
    assert found is not None and found.id == id


def test_no_total_is_no_card() -> None:
    assert cards.by_total(123 * GIB) == ()


def test_a_printed_capacity_names_the_cards_that_show_it() -> None:
    assert {c.id for c in cards.by_total(round(79.1 * GIB))} >= {"a100-80gb", "h100-80gb"}


def test_a_device_of_a_board_with_two_dies_is_one_die() -> None:
    """HIP and torch see each GCD of a MI250X as a device of its own, with half of the board's 128 GB."""
    card = cards.find("MI250X")
    assert card is not None and round(card.usable()[0] / GIB, 2) == 63.98
    half, board = card.flops["bf16"], 383e12
    assert half == board / 2 and card.bandwidth_bytes == 1640e9
