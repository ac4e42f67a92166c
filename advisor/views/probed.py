"""What a probe saw, beside the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from advisor.arithmetic import CannotEstimate, estimate
from advisor.beside import same_moment
from advisor.ledger import Ledger
from advisor.render import words
from advisor.render.lifetimes import Frame
from advisor.run import Run
from advisor.simulation import Probed
from advisor.units import show
from advisor.verdict import judge
from advisor.views.beside import show_beside
from advisor.views.lifetimes import show_step
from advisor.views.verdict import banner
from advisor.views.words import plain


def show_probed(run: Run, seen: Probed, frames: Sequence[Frame], key: str) -> None:
    """The verdict by the probe, both figures at one moment, where they differ, and the step to scrub through."""
    banner(*judge(run, seen.ledger))
    estimated = _estimated(run)
    _tiles(seen.ledger, estimated)
    if estimated is not None:
        show_beside(seen.ledger, estimated)
    for note in seen.notes:
        st.caption(f"Note: {plain(note)}.")
    if frames:
        opened = st.expander("The step, tensor by tensor", icon=":material/animation:", on_change="rerun", key=f"{key}:step")
        if opened.open:
            with opened:
                show_step(frames, f"{key}:frames")
    modes = ", ".join(f"{show(size)} in {'expandable segments' if mode == 'expandable' else 'the default mode'}" for mode, size in seen.reserved.items())
    software = ", ".join(f"{plain(k)} {plain(v)}" for k, v in seen.ledger.software.items())
    st.caption(f"{seen.events:,} births and deaths of tensors in {seen.seconds:.0f} s, with {software}. PyTorch would reserve {modes}.")


def _tiles(probed: Ledger, estimated: Ledger | None) -> None:
    """Both figures at the same moment: the largest of the probe."""
    tile: dict[str, Any] = {"delta_color": "off", "delta_arrow": "off", "border": True, "height": "stretch"}
    with st.grid(3 if estimated else 2, min_column_width=220):
        st.metric("Allocated at the peak, probed", show(probed.peak().bytes), words.moment(probed.peak().phase), **tile)
        if estimated is None:
            st.metric("Estimated", "no estimate", **tile)
            return
        ours, theirs = same_moment(probed, estimated)
        st.metric("Estimated", show(theirs.bytes), words.moment(theirs.phase), **tile)
        off = theirs.bytes / ours.bytes - 1 if ours.bytes else 0.0
        st.metric("The estimate is off by", f"{off:+.1%}", "of the probed figure", **tile)


def _estimated(run: Run) -> Ledger | None:
    try:
        return estimate(run)
    except CannotEstimate:
        return None
