"""The verdict in one sentence, and three figures with how each is known."""

from __future__ import annotations

import streamlit as st

from advisor.evidence import Failure
from advisor.ledger import Ledger
from advisor.render import words
from advisor.render.quoted import quoted
from advisor.render.width import explained
from advisor.run import Run
from advisor.units import show
from advisor.verdict import needed
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
    said = quoted(failure, ledger)
    if said is not None:
        st.markdown(f"**Quoted from the error:** {said}")


def left_over(need: int, usable: int, verdict: str) -> str:
    """What is left or lacking; of a run that died although the estimate is below the card, nothing is said to be left."""
    if need > usable:
        return f"{show(need - usable)} too little"
    return f"{show(usable - need)} {'above the estimate' if verdict == 'ooms' else 'left'}"


def figures(ledger: Ledger | None, usable: int | None, why: str | None, run: Run | None = None, verdict: str = "") -> None:
    """What is needed, with how that is known and its range, and why that is wide where it is; what is usable, with what is left or lacking."""
    if ledger is None or not ledger.peak().bytes:
        return
    need, peak = needed(ledger), ledger.peak()
    shows = ledger.totals()["device_used"].expected
    with st.grid(2, min_column_width=250):
        st.metric(
            f"Needed {words.moment(peak.phase)}",
            show(need.expected),
            f"{ledger.kind}, {show(need.low)} to {show(need.high)}",
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=f"On one card: tensors that PyTorch has allocated ({show(peak.bytes)}) and the CUDA context. PyTorch's cache comes on top and gives way "
            f"when the card is full; with it, nvidia-smi would show {show(shows)}. {ledger.kind.capitalize()}: {words.KINDS.get(ledger.kind, '')}. "
            "The range is where the true figure is expected.",
        )
        left = None if usable is None else left_over(need.expected, usable, verdict)
        st.metric(
            "Usable on the card",
            "not known" if usable is None else show(usable),
            left,
            delta_color="off",
            delta_arrow="off",
            border=True,
            height="stretch",
            help=why or "Name the card to compare with it.",
        )
    if (said := explained(run, ledger)) is not None:
        st.caption(plain(said))
