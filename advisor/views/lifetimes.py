"""A step to scrub through: bytes by part along the step, and at the chosen moment what is alive and what was just born or died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from advisor.ledger import PARTS
from advisor.render import words
from advisor.render.lifetimes import Frame
from advisor.units import gib, show
from advisor.views.words import plain, share, table


def specification(frames: Sequence[Frame], chosen: int) -> dict[str, Any]:
    """Stacked areas along the step in the ledger's colours, and a line at the chosen moment."""
    present = [p for p in PARTS if any(p in f.parts for f in frames)]
    rows = [
        {"at": at, "part": words.part(part), "gib": gib(frame.parts.get(part, 0), 3), "order": PARTS.index(part), "phase": words.phase(frame.phase)}
        for at, frame in enumerate(frames)
        for part in present
    ]
    x = {"field": "at", "type": "quantitative", "axis": {"labels": False, "ticks": False, "grid": False}, "title": "One step, from its first event to its last"}
    areas = {
        "mark": {"type": "area", "interpolate": "step-after"},
        "encoding": {
            "x": x,
            "y": {"field": "gib", "type": "quantitative", "stack": "zero", "title": "GiB alive"},
            "order": {"field": "order", "type": "quantitative"},
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": [words.part(p) for p in present], "range": [words.colour(p) for p in present]},
                "legend": {"orient": "bottom", "title": None, "columns": 2},
            },
            "tooltip": [{"field": "phase", "title": "Phase"}, {"field": "part", "title": "Part"}, {"field": "gib", "title": "GiB"}],
        },
    }
    begins = [{"at": at, "says": words.phase(f.phase)} for at, f in enumerate(frames) if at == 0 or frames[at - 1].phase != f.phase]
    phases = {
        "data": {"values": begins},
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": 2, "dy": -3, "color": "#8C8C8C"},
        "encoding": {"x": x, "y": {"value": 0}, "text": {"field": "says"}},
    }
    here = {"data": {"values": [{"at": chosen}]}, "mark": {"type": "rule", "strokeWidth": 2, "color": "#E91E63"}, "encoding": {"x": x}}
    return {"data": {"values": rows}, "layer": [areas, phases, here], "height": 420, "padding": {"top": 18}}


@st.fragment
def show_step(frames: Sequence[Frame], key: str) -> None:
    """The chart, a slider for mouse and keyboard, and the chosen moment in words."""
    if len(frames) < 2:
        return
    top = max(range(len(frames)), key=lambda at: frames[at].bytes)
    chosen = st.slider(
        "Moment of the step",
        1,
        len(frames),
        top + 1,
        key=key,
        help="Arrow keys move one frame. It starts at the largest moment.",
    )
    frame = frames[chosen - 1]
    st.vega_lite_chart(
        specification(frames, chosen - 1),
        key=f"{key}:chart",
        width="stretch",
        alt=f"Bytes alive along one step. The largest moment is {words.moment(frames[top].phase)}: {show(frames[top].bytes)}.",
    )
    says = "" if not frame.change_bytes else f" {'Born' if frame.change_bytes > 0 else 'Died'}: {plain(frame.change)}, {show(abs(frame.change_bytes))}."
    st.markdown(f"**{words.phase(frame.phase)}**, moment {chosen} of {len(frames)}: {show(frame.bytes)} alive.{says}")
    rows = [(words.part(part), show(size), share(size, frame.bytes)) for part, size in sorted(frame.parts.items(), key=lambda kv: -kv[1])]
    st.markdown(table(("Alive now", "Size", "Share"), rows, right=(1, 2)))
