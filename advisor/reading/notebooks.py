"""A notebook taken apart, however its JSON is laid out: the code of its cells, and what they printed as the lines that a person saw.

Source: Jupyter's nbformat 4 ("The Notebook file format"): texts are one string or a list of strings to be joined; an output is a stream, an
error with its traceback, or data by media type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

_CELLS, _OUTPUTS = 2_000, 200  # cells of a notebook, outputs of a cell


class Notebook(Struct, frozen=True):
    """``cells``: the notebook as JSON without its outputs. ``code``: the code of all cells. ``shown``: remarks and outputs in the order of the cells."""

    cells: str
    code: str
    shown: str


def opened(text: str) -> Notebook | None:
    """The notebook; ``None`` where the text is none, or its JSON is broken."""
    if not text.lstrip().startswith("{") or '"cells"' not in text or '"cell_type"' not in text:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or not ("nbformat" in data or "metadata" in data):
        return None
    kept = [cell for cell in cells[:_CELLS] if isinstance(cell, dict)]
    bare = [{name: cell[name] for name in ("cell_type", "source") if name in cell} for cell in kept]
    code = "\n".join(_joined(cell.get("source")) for cell in kept if cell.get("cell_type") == "code")
    shown = "\n".join(piece.rstrip("\n") for cell in kept for piece in _shown(cell))
    return Notebook(json.dumps({"cells": bare, "metadata": {}, "nbformat": 4}, ensure_ascii=False, indent=1), code, shown)


def _shown(cell: Mapping[str, Any]) -> Iterator[str]:
    if cell.get("cell_type") == "markdown":
        yield _joined(cell.get("source"))
    outputs = cell.get("outputs")
    for output in outputs[:_OUTPUTS] if isinstance(outputs, list) else ():
        if not isinstance(output, Mapping):
            continue
        kind, data = output.get("output_type"), output.get("data")
        if kind == "error":
            yield _error(output)
        elif kind == "stream":
            yield _joined(output.get("text"))
        elif isinstance(data, Mapping):
            yield _joined(data.get("text/plain"))


def _error(output: Mapping[str, Any]) -> str:
    """The traceback, and the message below it where that is not in it already."""
    told = output.get("traceback")
    frames = "\n".join(part.rstrip("\n") for part in told if isinstance(part, str)) if isinstance(told, list) else _joined(told)
    name, message = _joined(output.get("ename")), _joined(output.get("evalue"))
    return frames if message and message[:60] in frames else f"{frames}\n{name}: {message}".strip("\n")


def _joined(part: Any) -> str:
    if isinstance(part, list):
        return "".join(item for item in part if isinstance(item, str))
    return part if isinstance(part, str) else ""
