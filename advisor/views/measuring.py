"""A measured ledger that was handed over, beside the estimate and the probe of the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from advisor.compare import CompareError, Side, of_json
from advisor.job import Job, JobError, read_job
from advisor.render import words
from advisor.units import show
from advisor.views.words import plain, table

MAX_BYTES = 8 * 1024 * 1024
OWNED = ("weights", "gradients", "optimizer")  # what a measurement can name: tensors of the model and the optimizer
TOLD = ("activations", "attention", "logits")  # what a watched step tells apart, where the job ran in a plain loop
OUTSIDE = ("allocator", "context")  # no part of what is allocated


def of_text(text: str | bytes) -> tuple[Side | None, Job | None, dict[str, Any], str | None]:
    """``(measured, its job, the whole, complaint)`` of what ``advisor validate --json`` printed."""
    if len(text) > MAX_BYTES:
        return None, None, {}, f"This is larger than {show(MAX_BYTES)}; a result of `advisor validate --json` has some kilobytes."
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None, None, {}, "This is no JSON. Paste what `advisor validate job.yaml --json` printed, from the first { to the last }."
    if not isinstance(data, dict):
        return None, None, {}, "This is JSON, yet no result of `advisor validate job.yaml --json`."
    if data.get("outcome") in ("ooms", "not-measured"):
        said = "It ran out of memory there" if data["outcome"] == "ooms" else "It was not measured"
        return None, None, data, f"{said}: {str(data.get('error', 'no reason was given'))[:600]}"
    if data.get("kind") != "measured":
        return None, None, data, f"This is {data.get('kind', 'of no kind')!s:.40}, not measured. A measurement comes from `advisor validate job.yaml --json`."
    try:
        side = of_json("measured", data)
        return side, read_job(dict(side.job)), data, None
    except (CompareError, JobError, ValueError, OverflowError) as error:
        return None, None, data, f"This result can not be read: {str(error).splitlines()[0][:300]}"


def rows(sides: Sequence[Side]) -> list[tuple[str, list[int | None]]]:
    """Bytes of each part at each side's own peak. What the measured side, the last, does not tell apart is one row for all."""
    named = [*OWNED, *(part for part in TOLD if sides[-1].parts.get(part))]
    found: list[tuple[str, list[int | None]]] = [(words.part(part), [side.parts.get(part) for side in sides]) for part in named]
    found.append(("All else that is allocated", [sum(size for part, size in side.parts.items() if part not in (*named, *OUTSIDE)) for side in sides]))
    found.append(("**Allocated together**", [side.totals.get("max_allocated") for side in sides]))
    reserved = [side.totals.get("max_reserved") for side in sides]
    if any(side.kind == "measured" and "allocator" in side.parts for side in sides):  # a CPU has no caching allocator to compare with
        found.append(("Reserved by PyTorch", reserved))
    return [row for row in found if any(row[1])]


def show_measured(sides: Sequence[Side], data: Mapping[str, Any]) -> None:
    """The sides in columns; the last is the measured one. Differences are against it."""
    measured = sides[-1]
    peak = measured.totals.get("max_allocated", 0)
    st.success(
        f"Measured on {plain(data.get('device', 'a device that was not named'))}: {show(peak)} at the peak, {words.moment(measured.phase)}.",
        icon=":material/straighten:",
    )
    for note in [n for n in data.get("notes") or [] if isinstance(n, str)][:10]:
        st.caption(plain(note[:500]))
    heads = [side.kind.capitalize() for side in sides]
    cells = [
        (plain(name) if "*" not in name else name, *(_size(v) for v in values), *(_off(v, values[-1]) for v in values[:-1])) for name, values in rows(sides)
    ]
    off = [f"{side.kind.capitalize()}, off by" for side in sides[:-1]]
    st.markdown(table(("At the peak", *heads, *off), cells, right=range(1, 2 * len(sides))))
    phases = [phase for phase in measured.phases if all(side.phases.get(phase) for side in sides)]
    if phases:
        body = [(words.phase(p), *(show(s.phases[p]) for s in sides), *(_off(s.phases[p], measured.phases[p]) for s in sides[:-1])) for p in phases]
        st.markdown(table(("Largest moment of", *heads, *off), body, right=range(1, 2 * len(sides))))
    software = " · ".join(f"{plain(name)} {plain(version)}" for name, version in measured.software.items())
    if software:
        st.caption(f"Measured with {software}.")


def _size(size: int | None) -> str:
    return "–" if size is None else show(size)


def _off(size: int | None, measured: int | None) -> str:
    return "–" if not size or not measured else f"{(size / measured - 1) * 100:+.1f}%".replace("-", "−")
