"""A card's own page: what a process can use of it, its rates, what it can compute, and where each figure was read."""

from __future__ import annotations

import streamlit as st

from advisor import cards
from advisor.units import gib
from advisor.views.words import plain, table

KERNELS = {
    "bf16": "bf16 arithmetic",
    "fp8": "fp8 arithmetic",
    "mxfp8": "MXFP8 arithmetic",
    "nvfp4": "NVFP4 arithmetic",
    "flash_2": "FlashAttention 2",
    "flash_3": "FlashAttention 3",
    "flash_4": "FlashAttention 4",
    "sdpa_flash": "PyTorch's flash attention",
    "sdpa_efficient": "PyTorch's memory-efficient attention",
}
ANSWERS = {True: "yes", False: "no", None: "not known"}
UNREAD = "Not read again at its source: take it with care."


def one_card(name: str) -> None:
    """The card of this id, or a sentence that there is none."""
    card = cards.catalogue().get(name)
    if card is None:
        st.warning(f"The library has no card {plain(name)}.", icon=":material/search_off:")
        return
    st.header(plain(card.name))
    size, why = card.usable()
    st.markdown(f"**{gib(size, 1):,} GiB** can be used by a process, its CUDA context included: {plain(why)}.")
    st.markdown(table(("Figure", "Value", "Source"), _figures(card), right=(1,)))
    st.subheader("What it can compute")
    rows = [(plain(KERNELS.get(key, key)), ANSWERS[can]) for key, can in card.supports.items()]
    st.markdown(table(("Feature", "Supported"), rows))
    if source := _source(card, "supports"):
        st.caption(source)
    st.caption(f"In a job file: `{card.id}`. Also read as {plain(', '.join(card.aliases))}." if card.aliases else f"In a job file: `{card.id}`.")


def _figures(card: cards.Card) -> list[tuple[str, str, str]]:
    """(what, value with its unit, source) of each figure that is known."""
    rates = [(f"Dense matrix rate in {dtype}", rate / 1e12, "TFLOP/s", "tflops_dense") for dtype, rate in card.flops.items() if rate]
    sized = [
        ("Memory on the box", card.marketed_gb, "GB", "marketed_gb"),
        ("Total in nvidia-smi", None if card.smi_bytes is None else gib(card.smi_bytes, 1), "GiB", "smi_total_bytes"),
        ("Total in PyTorch", None if card.torch_bytes is None else gib(card.torch_bytes, 1), "GiB", "torch_total_bytes"),
        ("Memory bandwidth", None if card.bandwidth_bytes is None else card.bandwidth_bytes / 1e9, "GB/s", "bandwidth_gb_s"),
        *rates,
        ("Link to other cards, both directions", None if card.link_bytes is None else card.link_bytes / 1e9, "GB/s", "link_gb_s"),
        ("PCIe, one direction", None if card.bus_bytes is None else card.bus_bytes / 1e9, "GB/s", "bus_gb_s"),
    ]
    found = [(what, f"{value:,.4g} {unit}" if value < 1000 else f"{value:,.0f} {unit}", _source(card, key)) for what, value, unit, key in sized if value]
    return [*found, ("Compute capability", plain(card.capability), "")] if card.capability else found


def _source(card: cards.Card, key: str) -> str:
    """Where a figure was read; of one that was not read again that, and not what the catalogue notes of it for its keepers."""
    return UNREAD if key in card.unverified else plain(card.sources.get(key, ""))
