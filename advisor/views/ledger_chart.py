"""The ledger as stacked bars, one for each phase, against the card's line; a table says the same in words.

The chart is a plain Vega-Lite specification (the language under Altair): building it costs microseconds and imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from advisor.ledger import PARTS, Ledger
from advisor.render import words
from advisor.units import gib, show
from advisor.views.words import share, table

OUTLINE = "#8C8C8C"  # 3 to 1 and more on the light and on the dark ground alike
HARDLY = "rgba(140, 140, 140, 0.08)"


def parts_of(ledger: Ledger, phase: str) -> dict[str, int]:
    """Bytes by part at the largest moment of a phase, context and allocator's cache included."""
    inside = ledger.by_part(ledger.peak((phase,)).moment.id)
    outside = {part: size for part in ("allocator", "context") if (size := ledger.outside(part))}
    return {**inside, **outside}


def specification(ledger: Ledger, usable: int | None) -> dict[str, Any]:
    """Bars by phase, stacked by part in the ledger's fixed order and colours, and the line of the card."""
    phases = [p for p in ledger.phases() if ledger.at(p)]
    rows = [
        {
            "phase": words.phase(phase),
            "part": words.part(part),
            "id": part,
            "gib": gib(size, 3),
            "size": show(size),
            "order": PARTS.index(part) if part in PARTS else 99,
        }
        for phase in phases
        for part, size in parts_of(ledger, phase).items()
    ]
    present = [p for p in PARTS if any(r["id"] == p for r in rows)]
    # the cache is an outline: it gives way when the card is full, and a light block would be the loudest on a dark ground; filled, it looks like a part
    cache = "datum.id === 'allocator'"
    bars = {
        "mark": {"type": "bar"},
        "params": [{"name": "part", "select": {"type": "point", "fields": ["id"]}}],
        "encoding": {
            "y": {"field": "phase", "type": "nominal", "sort": [words.phase(p) for p in phases], "title": None, "axis": {"labelLimit": 110}},
            "x": {"field": "gib", "type": "quantitative", "stack": "zero", "title": "GiB on one card"},
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": _colours(present),
                "legend": _legend(),
            },
            "order": {"field": "order", "type": "quantitative"},
            "stroke": {"condition": {"test": cache, "value": OUTLINE}, "value": "white"},
            "strokeWidth": {"condition": {"test": cache, "value": 1.4}, "value": 0.6},
            "opacity": {"condition": {"param": "part", "value": 1}, "value": 0.35},
            "tooltip": [{"field": "phase", "title": "Phase"}, {"field": "part", "title": "Part"}, {"field": "size", "title": "Size"}],
        },
    }
    layers: list[dict[str, Any]] = [bars]
    if usable is not None:
        line = {"values": [{"gib": gib(usable, 3), "says": f"{show(usable)} usable"}]}
        at = {"field": "gib", "type": "quantitative"}
        layers.append({"data": line, "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2, "color": "#E91E63"}, "encoding": {"x": at}})
        label = {"type": "text", "align": "right", "baseline": "bottom", "dx": -4, "dy": -3, "color": "#E91E63", "fontWeight": "bold"}
        layers.append({"data": line, "mark": label, "encoding": {"x": at, "y": {"value": 0}, "text": {"field": "says"}}})
    return {"data": {"values": rows}, "layer": layers, "height": {"step": 34}, "padding": {"top": 18}}


def _colours(parts: Sequence[str]) -> dict[str, list[str]]:
    """A colour for each part, the same as everywhere; that of the cache hardly fills its outline, in the bars and in the legend alike."""
    return {"domain": [words.part(p) for p in parts], "range": [HARDLY if p == "allocator" else words.colour(p) for p in parts]}


def _legend() -> dict[str, Any]:
    """The legend's form: the part that is drawn as an outline is said to be one."""
    cache = words.part("allocator")
    return {
        "orient": "bottom",
        "title": None,
        "columns": 2,
        "labelFontSize": 12,  # as on the axes: two columns go into a phone
        "labelLimit": 170,
        "labelExpr": f"datum.label === '{cache}' ? '{cache} (outline)' : datum.label",
        "symbolStrokeColor": OUTLINE,
        "symbolStrokeWidth": 1,
    }


def takeaway(ledger: Ledger, usable: int | None) -> str:
    """What the chart shows, in a sentence."""
    peak = ledger.peak()
    found = {part: size for part, size in parts_of(ledger, peak.phase).items() if part != "allocator"}
    parts, used = sorted(found.items(), key=lambda kv: -kv[1])[:3], sum(found.values())
    limit = "" if usable is None else f", {'over' if used > usable else 'within'} the {show(usable)} that are usable"
    return (
        f"The largest moment is {words.moment(peak.phase)}: {show(used)}{limit}. Largest parts: "
        + ", ".join(f"{words.part(p)} {show(s)}" for p, s in parts)
        + "."
    )


def show_ledger(ledger: Ledger, usable: int | None, key: str) -> str | None:
    """Chart and table; returns the part that was clicked in the chart."""
    wide, beside = st.columns([3, 2], gap="medium")
    with wide:
        event = st.vega_lite_chart(
            specification(ledger, usable), key=key, on_select="rerun", selection_mode="part", alt=takeaway(ledger, usable), width="stretch"
        )
    with beside:
        phase = ledger.peak().phase
        parts = parts_of(ledger, phase)
        cache = parts.pop("allocator", 0)
        total = sum(parts.values())
        rows = [(words.part(part), show(size), share(size, total)) for part, size in sorted(parts.items(), key=lambda kv: -kv[1])]
        rows.append(("**Needed together**", f"**{show(total)}**", ""))
        if cache:
            rows.append((f"{words.part('allocator')}, which gives way", show(cache), ""))
        st.markdown(table((f"{words.moment(phase).capitalize()}", "Size", "Share"), rows, right=(1, 2)))
    chosen = event.selection.get("part") if event and hasattr(event, "selection") else None
    return str(chosen[0]["id"]) if chosen else None
