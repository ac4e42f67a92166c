"""A part opened: what it is, the causes about it, and for each holding the formula with this run's numbers and where the formula is from."""

from __future__ import annotations

import streamlit as st

from advisor.ledger import Ledger, explain
from advisor.render import words
from advisor.units import show
from advisor.views.related import show_causes_of
from advisor.views.words import plain


def open_part(ledger: Ledger, clicked: str | None, key: str) -> None:
    """Pills to choose a part (the keyboard's way to what a click in the chart does), and its formulas."""
    sizes: dict[str, int] = {}
    for holding in ledger.holdings:
        if holding.bytes:
            sizes[holding.part] = max(sizes.get(holding.part, 0), holding.bytes)
    parts = sorted(sizes, key=lambda p: -sizes[p])
    seen = f"{key}:clicked"
    if clicked in parts and st.session_state.get(seen) != clicked:
        st.session_state[key] = clicked
    st.session_state[seen] = clicked
    if st.session_state.get(key) not in (*parts, None):
        st.session_state[key] = None
    part = st.pills("Open a part to see its formula", parts, format_func=words.part, key=key)
    if part:
        formulas(ledger, str(part), key)


def formulas(ledger: Ledger, part: str, key: str) -> None:
    """Every holding of a part, largest first, under the causes that are about it."""
    moment = ledger.peak().moment.id
    with st.container(border=True):
        st.markdown(f"**{words.part(part)}**: {plain(words.meaning(part))}.")
        show_causes_of(part, key)
        for holding in sorted((h for h in ledger.holdings if h.part == part and h.bytes), key=lambda h: -h.bytes)[:24]:
            alive = "" if moment in holding.moments or part in ("context", "allocator") else ", not alive at the peak"
            place = "" if holding.device == "gpu" else f", in {holding.device} memory"
            copied = f", the same values as {plain(holding.copy_of)}" if holding.copy_of else ""
            st.markdown(f"{plain(holding.name)}: **{show(holding.bytes)}**{place}{copied}{alive}")
            st.code(explain(holding), language=None, wrap_lines=True)
            error = f" Known error: {holding.error}." if holding.error else ""
            st.caption(plain(f"Source: {holding.source}.{error}"))
