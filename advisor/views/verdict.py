"""The verdict in one sentence, and three figures with how each is known."""

from __future__ import annotations

import streamlit as st

from advisor.evidence import Failure
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


def printed(failure: Failure | None, ledger: Ledger | None) -> None:
    """What the error itself says, as quoted, and how much of it the estimate explains: the two are never mixed in one figure."""
    if failure is None or failure.allocated_bytes is None:
        return
    asked = failure.requested_bytes
    needed = failure.allocated_bytes + (asked or 0)
    more = f" and asked for {show(asked)} more" if asked else ""
    of = f" of {show(failure.capacity_bytes)}" if failure.capacity_bytes is not None else ""
    said = f"**Quoted from the error:** PyTorch had allocated {show(failure.allocated_bytes)}{of}{more}."
    if ledger is not None and ledger.peak().bytes:
        explained = ledger.peak().bytes
        gap = needed - explained
        if abs(gap) <= 0.1 * needed:
            said += f" The estimate explains it: {show(explained)} allocated at the peak."
        elif gap > 0:
            said += f" The estimate explains {show(explained)} of these {show(needed)}; {show(gap)} are not explained by what is known so far."
        else:
            said += f" The estimate's peak is {show(explained)} allocated, {show(-gap)} more: it would have needed more still, or holds less than was assumed."
    st.markdown(said)


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
