"""The run on every card of the library: which hold it, with the figures."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from advisor.frontier import OnCard, on_cards
from advisor.resolving.contradictions import contradictions
from advisor.run import Run
from advisor.units import gib
from advisor.views.kept import settings
from advisor.views.words import plain

USUAL = "nvidia"  # where the run names no card: whose errors and settings the library knows best
_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "apple": "Apple", "intel": "Intel"}
_WORDS = {
    "fits": "✓ fits",
    "tight": "~ tight",
    "ooms": "✗ does not fit",
    "incomplete": "? not known",
}
HAS_MEMORY = ", but see below"


@st.cache_data(show_spinner=False, max_entries=64)
def _on_cards(key: str, _run: Run) -> list[tuple[OnCard, str]]:
    """The cards of a job, each with what it has against the job's settings, kept by these."""
    del key  # a Run holds caches of its own and is not hashed
    anyhow = contradictions(_run)
    return [(on, _against(_run, on, anyhow)) for on in on_cards(_run)]


def _against(run: Run, on: OnCard, anyhow: tuple[str, ...]) -> str:
    """What the run cannot do on a card that has the memory, beside what is wrong with it anywhere; empty where there is nothing."""
    if on.verdict not in ("fits", "tight"):
        return ""
    return " ".join(said for said in contradictions(run.but(hardware={"gpu": on.card.id})) if said not in anyhow)


def show_cards(run: Run) -> None:
    """The smallest card that holds the run, and the table: of the maker of the run's own card, as its software is, unless others are asked for."""
    maker = run.card.vendor if run.card is not None and run.card.vendor else USUAL
    others = st.toggle(
        "Cards of other makers too",
        key="explore-makers",
        persist_state="session",
        help=f"The run is written for {_MAKERS.get(maker, maker)}. Another maker's card needs another build of torch and of every kernel.",
    )
    found = sorted(
        (on for on in _on_cards(settings(run), run) if others or on[0].card.vendor == maker),
        key=lambda c: (list(_WORDS).index(c[0].verdict), bool(c[1])),  # within one verdict what can compute it first, of these the smallest
    )
    smallest = next((c for c, against in found if c.verdict == "fits" and not against), None)
    if smallest is not None:
        st.markdown(f"The smallest card that holds it is **{plain(smallest.card.name)}**.")
    else:
        st.markdown("None of these cards holds it like this.")
    st.dataframe(
        [
            {
                "Card": c.card.name,
                "Verdict": _WORDS[c.verdict] + (HAS_MEMORY if against else ""),
                "Needs": gib(c.need_bytes, 1),
                "Usable": gib(c.usable_bytes, 1),
            }
            for c, against in found
        ],
        column_config={
            "Needs": st.column_config.NumberColumn(
                format="%.1f GiB", help="Tensors and the CUDA context. PyTorch's cache comes on top and gives way when the card is full."
            ),
            "Usable": st.column_config.NumberColumn(format="%.1f GiB", help="What a process can use of the card."),
        },
        hide_index=True,
        height=560,
        alt="The cards with the verdict of this run on it: those that hold it and can compute it first, of these the smallest first.",
    )
    _show_against(found)


def _show_against(found: Sequence[tuple[OnCard, str]]) -> None:
    """Under the table, because a sentence does not fit a cell: what has the memory and cannot compute it, each reason with its cards."""
    cards: dict[str, list[str]] = {}
    for on, against in found:
        if against:
            cards.setdefault(against, []).append(on.card.name)
    if cards:
        st.markdown("These have the memory, but cannot do what the settings ask for:")
        st.markdown("\n".join(f"- **{plain(', '.join(names))}**: {plain(reason)}" for reason, names in cards.items()))
