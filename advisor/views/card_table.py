"""The run on every card of the library: which hold it, with the figures."""

from __future__ import annotations

import streamlit as st

from advisor.evidence import Evidence
from advisor.frontier import OnCard, on_cards
from advisor.run import Run
from advisor.share import link
from advisor.units import show
from advisor.views.words import plain, table

_WORDS = {
    "fits": ":material/check_circle: fits",
    "tight": ":material/warning: tight",
    "ooms": ":material/error: does not fit",
    "incomplete": ":material/help: not known",
}


@st.cache_data(show_spinner=False, max_entries=64)
def _on_cards(settings: str, _run: Run) -> list[OnCard]:
    """The cards of a job, kept by its link."""
    del settings  # the key; a Run holds caches of its own and is not hashed
    return on_cards(_run)


def show_cards(run: Run) -> None:
    """The smallest card that holds the run, and the table of all."""
    found = _on_cards(link(run.stated, Evidence()).query, run)
    smallest = next((c for c in found if c.verdict == "fits"), None)
    if smallest is not None:
        st.markdown(f"The smallest card that holds it is **{plain(smallest.card.name)}**.")
    else:
        st.markdown("No card of the library holds it like this.")
    rows = [(plain(c.card.name), _WORDS[c.verdict], show(c.used_bytes), show(c.usable_bytes)) for c in found]
    st.markdown(table(("Card", "Verdict", "Needs", "Usable"), rows, right=(2, 3)))
