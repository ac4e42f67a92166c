"""A watched run's log on the page: what was found, by kind and place; how the peak went; which attention ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from advisor import knowledge
from advisor.measurement.summing import AT, by_part, events_of, summed
from advisor.render import words
from advisor.units import GIB, gib, show
from advisor.views.causes import library_link
from advisor.views.words import plain, table

MAX_BYTES = 32 * 1024 * 1024
SHOWN = 60
LAYERS = 10  # of the gradients
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"]  # Okabe and Ito: apart also for the colour-blind


def of_upload(data: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """``(summary, complaint)`` of a log that was dropped; one of them is ``None``."""
    if len(data) > MAX_BYTES:
        return None, f"The log is {show(len(data))}; up to {show(MAX_BYTES)} are read here. `advisor events LOG` reads any size."
    broken: list[int] = []
    found = summed(events_of(data, broken=broken), broken)
    if not found["events"]:
        return None, "This holds no events. Give the file that `advisor.watch(..., log=FILE)` wrote: one JSON object a line."
    return found, None


def show_events(found: Mapping[str, Any]) -> None:
    """Everything that a log says."""
    ended = "to its end" if found["ended"] else "not to its end: the run was killed, or still goes on"
    says = f"{found['events']:,} events, {found['steps']:,} steps observed, logged {ended}."
    if found["warnings"]:
        st.warning(f"{_count(len(found['warnings']), 'fault')} found. {says}", icon=":material/warning:")
    else:
        st.success(f"No fault was found. {says}", icon=":material/check_circle:")
    for failure in found["failures"]:
        st.error(plain(_failure(failure)), icon=":material/error:")
    _findings("Faults", found["warnings"])
    _findings("Worth knowing", found["notes"])
    _peaks(found)
    if found["attention"]:
        st.header("Attention that ran")
        st.markdown(table(("Kernel and place", "Observed steps"), [(plain(place), f"{times:,}") for place, times in found["attention"].items()], right=(1,)))
    if found["gradients"]:
        st.header("Gradients with most zeros")
        rows = [(plain(layer), f"{rates['zero']:.1%}", f"{rates['subnormal']:.1%}") for layer, rates in [*found["gradients"].items()][:LAYERS]]
        st.markdown(table(("Layer", "Zeros", "Of the others subnormal"), rows, right=(1, 2)))
        st.caption("A sample of each layer's gradient at the last look. In fp16, many zeros with subnormals beside them are what was too small.")
    if found["device"]:
        _device(found["device"])
    if found["broken_lines"]:
        st.caption(f"{_count(found['broken_lines'], 'line')} of the file are no events; a kill cuts at most the last one.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _failure(failure: Mapping[str, Any]) -> str:
    names = {"out-of-memory": "Memory ran out", "failed": "The run failed", "watcher-failed": "The watcher itself gave up; the run went on"}
    told = [f"in {failure['phase']}" if failure.get("phase") else "", f"step {failure['step']}" if "step" in failure else "", str(failure.get("error") or "")]
    return ", ".join([names[failure["kind"]], *[t for t in told if t]]) + "."


def _findings(head: str, findings: Sequence[Mapping[str, Any]]) -> None:
    """Grouped by cause, largest first; a cause of the library opens its page's first words."""
    if not findings:
        return
    st.header(head)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        groups.setdefault(str(finding["cause"]), []).append(finding)
    for cause, members in sorted(groups.items(), key=lambda item: -sum(_bytes(f) for f in item[1])):
        page = knowledge.path("causes") / f"{cause}.md" if cause.replace("-", "").isalnum() else None
        title = words.title("causes", cause) if page is not None and page.is_file() else cause.replace("-", " ").capitalize()
        st.subheader(plain(title))
        rows = [
            (plain(f.get("where") or "not known"), plain(f["title"]), show(_bytes(f)) if _bytes(f) else "–", str(f.get("step", 0))) for f in members[:SHOWN]
        ]
        st.markdown(table(("Place", "What", "Size", "Step"), rows, right=(2, 3)))
        if cause == "retained-graph":
            st.caption("Sizes are those of the tensors named. What their graph keeps alive beside them is in the tables below.")
        if page is not None and page.is_file():
            library_link("causes", cause, "Read about this cause")
        if len(members) > SHOWN:
            st.caption(f"and {len(members) - SHOWN:,} more of this kind")


def _bytes(finding: Mapping[str, Any]) -> int:
    size = finding.get("bytes", 0)
    return size if isinstance(size, int) and 0 <= size < 1 << 60 else 0


def _peaks(found: Mapping[str, Any]) -> None:
    if not found["peaks"]:
        return
    st.header("Largest live size, measured")
    st.markdown(table(("Phase", "Size"), [(plain(words.phase(phase)), show(size)) for phase, size in found["peaks"].items()], right=(1,)))
    if found["parts"]:
        rows = [(plain(words.part(part)), *("–" if size is None else show(size) for size in sizes)) for part, *sizes in by_part(found)]
        st.markdown(table(("Part, in the largest step", "Stored", "Resident", "Peak live"), rows, right=(1, 2, 3)))
        st.caption("Stored: as saved. Resident: held between two steps. Peak live: at the largest moment.")
    if len(found["course"]) > 2:
        _course(found["course"])


def _course(course: Sequence[Mapping[str, Any]]) -> None:
    """How the largest live size of each phase went, in MiB where all of it is below a GiB."""
    sizes = [(row[AT], words.phase(phase), size) for row in course for phase, size in row.items() if phase != AT]
    unit, scale = ("GiB", 1) if max(size for *_, size in sizes) >= GIB else ("MiB", 1024)
    values = [{"step": step, "phase": phase, "size": gib(size * scale, 4)} for step, phase, size in sizes]
    legend = {"orient": "bottom", "columns": 2}  # two beside each other are not cut off on a phone
    st.vega_lite_chart(
        {
            "data": {"values": values}, "mark": {"type": "line", "point": True}, "height": 320,
            "encoding": {
                "x": {"field": "step", "type": "quantitative", "title": "Observed step", "axis": {"tickMinStep": 1, "format": "d"}},
                "y": {"field": "size", "type": "quantitative", "title": unit, "scale": {"zero": False}},
                "color": {"field": "phase", "type": "nominal", "title": None, "sort": None, "legend": legend, "scale": {"range": COLOURS}},
                "shape": {"field": "phase", "type": "nominal", "sort": None},
            },
        },
        alt=f"The largest live size of each phase over {len(course)} observed steps, in {unit}.", width="stretch",
    )  # fmt: skip


def _device(samples: Sequence[Mapping[str, Any]]) -> None:
    st.header("The card while it ran")
    last = samples[-1]
    rows = [(plain(str(key).replace("_", " ")), plain(value)) for key, value in last.items() if key not in ("time", "kind", "level")]
    st.markdown(table(("Counter", "Last sample"), rows))
