"""Accuracy: the estimates beside published measurements, case by case, the worst first."""

import streamlit as st

from advisor.views.warming import scored
from advisor.views.words import BROKEN_LINES, plain, table

METRICS = {
    "max_allocated": "allocated by PyTorch",
    "max_reserved": "reserved by PyTorch",
    "max_active": "active in PyTorch",
    "nvidia-smi": "shown by nvidia-smi",
}


def percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1f}%"


st.title("Accuracy")
st.markdown("Every published measurement that we found, and what the estimate says of the same run. Nothing is left out: the worst stand first.")
with st.spinner("Estimating every measured run"):
    found = scored()
total = found["n"] + len(found["skipped"])
with st.grid(4, min_column_width=170):
    st.metric(
        "Runs estimated",
        f"{found['n']:,}",
        f"of {total:,}",
        delta_color="off",
        delta_arrow="off",
        border=True,
        height="stretch",
        help="Measured runs that the estimator could judge; the others are listed below with a reason.",
    )
    st.metric(
        "Median error", percent(found["median_ape"]), border=True, height="stretch", help="Half of the estimates are nearer to the measurement than this."
    )
    st.metric(
        "Nine in ten within",
        percent(found["p90_ape"]),
        border=True,
        height="stretch",
        help="Of ten estimates nine are nearer to the measurement than this.",
    )
    inside = found["inside_interval"]
    st.metric(
        "Inside the range",
        "not known" if inside is None else f"{inside:.0%}",
        border=True,
        height="stretch",
        help="Measurements that lie between the low and the high end of the estimate.",
    )

cases = [c for c in found["cases"] if c["measured_gib"] is not None]
if cases:
    st.header("Predicted against measured")
    top = max(max(c["measured_gib"], c["predicted_gib"]) for c in cases)
    axis = {"type": "quantitative", "scale": {"type": "log", "nice": False}, "axis": {"values": [m * 10**n for n in range(-1, 4) for m in (1, 2, 5)]}}
    low = min(min(c["measured_gib"], c["predicted_gib"]) for c in cases) * 0.9
    rows = [
        {
            "measured": c["measured_gib"],
            "predicted": max(c["predicted_gib"], low),
            "id": c["id"],
            "error": percent(c["ape"]),
            "metric": METRICS.get(c["metric"], c["metric"]),
        }
        for c in cases
    ]
    st.vega_lite_chart(
        {
            "layer": [
                {
                    "data": {"values": [{"v": low}, {"v": top * 1.1}]},
                    "mark": {"type": "line", "strokeDash": [6, 4], "color": "#8C8C8C"},
                    "encoding": {"x": {"field": "v", **axis}, "y": {"field": "v", **axis}},
                },
                {
                    "data": {"values": rows},
                    "mark": {"type": "point", "size": 60, "filled": True, "opacity": 0.7},
                    "encoding": {
                        "x": {"field": "measured", "title": "Measured (GiB)", **axis},
                        "y": {"field": "predicted", "title": "Estimated (GiB)", **axis},
                        "color": {
                            "field": "metric",
                            "type": "nominal",
                            "title": None,
                            "legend": {"orient": "bottom", "columns": 2},
                            "scale": {"range": ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]},
                        },
                        "shape": {"field": "metric", "type": "nominal"},
                        "tooltip": [{"field": "id"}, {"field": "measured"}, {"field": "predicted"}, {"field": "error"}],
                    },
                },
            ],
            "height": 380,
        },
        alt=f"{len(cases)} runs; the dashed line is where estimate and measurement agree. Median error {percent(found['median_ape'])}.",
        width="stretch",
    )
    only = st.text_input("Look for a run, a framework or a source", key="accuracy-only", placeholder="torchtune", help="Part of a case's id, source or metric.")
    listed = sorted((c for c in cases if only.lower() in f"{c['id']} {c['source']} {c['metric']}".lower()), key=lambda c: -(c["ape"] or 0))
    st.header("Worst first")
    st.dataframe(
        [
            {
                "Error": c["ape"],
                "Measured": c["measured_gib"],
                "Estimated": c["predicted_gib"],
                "Low": c["low_gib"],
                "High": c["high_gib"],
                "Run": c["id"],
                "What was read": METRICS.get(c["metric"], c["metric"]),
                "Source": c["source"],
                "Where": c["where"],
            }
            for c in listed
        ],
        column_config={
            "Error": st.column_config.NumberColumn(width=66, format="%.1f%%", help="Difference of estimate and measurement, in percent of the measurement."),
            **{name: st.column_config.NumberColumn(width=86, format="%.1f GiB") for name in ("Measured", "Estimated")},
            "Low": st.column_config.NumberColumn(width=80, format="%.1f GiB", help="The low end of the estimate's range."),
            "High": st.column_config.NumberColumn(width=86, format="%.1f GiB", help="The high end of the estimate's range."),
            "Run": st.column_config.TextColumn(width=240),
            "What was read": st.column_config.TextColumn(width=156, help="The counter that was published."),
            "Source": st.column_config.TextColumn(width=150),
            "Where": st.column_config.TextColumn(width=340),
        },
        row_height=BROKEN_LINES,
        hide_index=True,
        height=640,
        alt="The measured runs, worst estimate first.",
    )
if found["skipped"]:
    with st.expander(f"Not estimated ({len(found['skipped'])})", icon=":material/help:"):
        st.markdown(table(("Run", "Why"), [(plain(s["id"]), plain(s["why"])) for s in found["skipped"]]))
