"""The verdict in one sentence, and three figures with how each is known."""

from __future__ import annotations

import streamlit as st

from advisor.ledger import Ledger
from advisor.render import words
from advisor.units import show
from advisor.views.words import plain

_BOXES = {
    "fits": (st.success, ":material/check_circle:"),
    "tight": (st.warning, ":material/warning:"),
    "ooms": (st.error, ":material/error:"),
    "not-memory": (st.info, ":material/info:"),
    "incomplete": (st.info, ":material/help:"),
    "unreadable": (st.info, ":material/help:"),
}


def banner(verdict: str, sentence: str) -> None:
    """The verdict: a word, an icon and a sentence, so that colour is not needed."""
    box, icon = _BOXES.get(verdict, _BOXES["incomplete"])
    box(plain(sentence), title=words.VERDICTS.get(verdict, verdict), icon=icon)


def figures(ledger: Ledger | None, usable: int | None, why: str | None) -> None:
    """Peak, capacity, and the kind of evidence."""
    if ledger is None or not ledger.peak().bytes:
        return
    used = ledger.totals()["device_used"]
    peak = ledger.peak()
    with st.grid(3, min_column_width=180):
        delta = None if usable is None else f"{show(abs(usable - used.expected))} {'left' if usable >= used.expected else 'over'}"
        st.metric(
            f"Peak on one card, {words.moment(peak.phase)}",
            show(used.expected),
            delta,
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=f"What nvidia-smi would show for this process: {show(used.low)} to {show(used.high)}. "
            f"PyTorch's own count (max_memory_allocated) is {show(peak.bytes)}.",
        )
        st.metric(
            "Usable on the card",
            "not known" if usable is None else show(usable),
            border=True,
            height="stretch",
            help=why or "Name the card to compare with it.",
        )
        st.metric(
            "How this is known",
            ledger.kind,
            f"{show(used.low)} to {show(used.high)}",
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=f"{ledger.kind}: {words.KINDS.get(ledger.kind, '')}. The range is where the true figure is expected.",
        )
