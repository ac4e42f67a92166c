"""Batch × sequence: a map of what fits, its boundary in words, and a click that takes the run there."""

from __future__ import annotations

from typing import Any

import streamlit as st

from advisor.frontier import batch_map, largest_batches
from advisor.report import Verdict
from advisor.run import Run
from advisor.views.kept import settings
from advisor.views.words import table

_LABELS = {"fits": "Fits", "tight": "Tight", "ooms": "Does not fit"}
_COLOURS = {"fits": "#009E73", "tight": "#F0E442", "ooms": "#B0B0B0"}


def specification(found: dict[tuple[int, int], str], micro: int | None, seq: int | None) -> dict[str, Any]:
    """Cells coloured by verdict, and a ring where the run is now."""
    rows = [{"micro": m, "seq": s, "verdict": _LABELS[v], "says": f"{m:,} x {s:,} tokens: {_LABELS[v].lower()}"} for (m, s), v in found.items()]
    present = [v for v in _LABELS if any(r["verdict"] == _LABELS[v] for r in rows)]
    x = {
        "field": "seq",
        "type": "ordinal",
        "title": "Sequence length (tokens)",
        "axis": {"labelAngle": -50, "labelOverlap": True, "labelExpr": "format(datum.value, ',')"},
    }
    y = {"field": "micro", "type": "ordinal", "title": "Micro batch", "sort": "descending", "axis": {"labelOverlap": True}}
    cells = {
        "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.5},
        "params": [{"name": "cell", "select": {"type": "point", "fields": ["micro", "seq"]}}],
        "encoding": {
            "x": x,
            "y": y,
            "color": {
                "field": "verdict",
                "type": "nominal",
                "scale": {"domain": [_LABELS[v] for v in present], "range": [_COLOURS[v] for v in present]},
                "legend": {"orient": "bottom", "title": None},
            },
            "tooltip": [{"field": "says", "title": "Batch"}],
        },
    }
    here = {
        "data": {"values": [{"micro": micro, "seq": seq}] if (micro, seq) in found else []},
        "mark": {"type": "point", "shape": "circle", "size": 130, "strokeWidth": 3, "color": "#000000", "filled": False},
        "encoding": {"x": x, "y": y, "tooltip": {"value": "the run as it is set"}},
    }
    return {"data": {"values": rows}, "layer": [cells, here], "height": 420}


@st.cache_data(show_spinner=False, max_entries=64)
def _map(key: str, _run: Run) -> dict[tuple[int, int], Verdict]:
    """The map of a job, kept by its settings: moving something else on the page does not walk the boundary again."""
    del key  # a Run holds caches of its own and is not hashed
    return batch_map(_run)


def show_map(run: Run) -> tuple[int, int] | None:
    """The map; returns the micro batch and sequence length of a clicked cell."""
    found = _map(settings(run), run)
    if not found:
        st.markdown("The map needs a model and a card that are known.")
        return None
    best = largest_batches(found)
    seq = run.job.batch.seq_len
    at = dict(best).get(seq or 0)
    says = f"At {seq:,} tokens the largest micro batch that fits with room to spare is {at}." if at and seq else "The ring marks the run as it is set."
    wide, beside = st.columns([3, 1], gap="medium")
    with wide:
        chart = specification({k: str(v) for k, v in found.items()}, run.job.batch.micro_batch, seq)
        event = st.vega_lite_chart(chart, key="map", on_select="rerun", selection_mode="cell", alt=f"What fits by batch and sequence. {says}", width="stretch")
        st.caption(f"{says} Click a cell to take the run there.")
    with beside:
        st.markdown(table(("Tokens", "Largest batch"), [(f"{s:,}", "none fits" if m is None else f"{m:,}") for s, m in best[::2]], right=(0, 1)))
    chosen = event.selection.get("cell") if event and hasattr(event, "selection") else None
    return (int(chosen[0]["micro"]), int(chosen[0]["seq"])) if chosen else None
