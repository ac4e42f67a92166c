"""The diagnosis bundle: one JSON file with what a failed run said (facts, counters, the report), never its raw output.

``link`` is what brings the diagnosis back, in the command (``advisor diagnose BUNDLE``) and on the page (drop the file): everything in it
is checked and recomputed like any pasted link.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

KEY = "advisor_bundle"
VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
_KEPT = (
    "verdict", "sentence", "phase", "rank", "findings", "plan", "plan_fits", "plan_summary", "next_question", "cleared", "could_not_tell", "job",
    "deviations", "ledger", "capacity", "failures", "read", "assumed", "conflicts", "notes",
)  # fmt: skip


def content(report: Any, query: str, ended: dict[str, Any]) -> dict[str, Any]:
    """The bundle of a report: its link, how the program ended, and the report without the lines that were not understood."""
    from advisor.render.json import of_report

    whole = of_report(report)
    return {KEY: VERSION, "open": "advisor diagnose THIS_FILE, or drop it on the Diagnose page", "link": query, "ended": ended} | {
        key: whole[key] for key in _KEPT if key in whole
    }


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the bundle; it is whole or not there.

    Raises:
        OSError: the folder can not be written to.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    partial.replace(path)


def kept(path: Path, data: dict[str, Any]) -> str:
    """Write the bundle there, or in the system's folder for temporary files where that fails; returns the lines that say so and how to open it.

    Raises:
        OSError: neither can be written to.
    """
    said = ""
    try:
        write(path, data)
    except OSError as error:
        said = f"{path} could not be written ({error.strerror or type(error).__name__}): the diagnosis is in another folder.\n"
        path = Path(tempfile.gettempdir()) / path.name
        write(path, data)
    return f"{said}More: advisor diagnose {path}   (or drop this file on the Diagnose page)"


def default_path() -> Path:
    """A file of this folder, named by the time and, where several ranks run, the rank."""
    rank = os.environ.get("RANK", "")
    suffix = f"-rank{rank}" if rank.isdecimal() else ""
    return Path(f"advisor-diagnosis-{time.strftime('%Y%m%d-%H%M%S')}{suffix}.json")


def query_of(text: str) -> str | None:
    """The link of a bundle's text; ``None`` where the text is no bundle."""
    if KEY not in text[:200] or len(text) > MAX_BYTES:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    query = data.get("link") if isinstance(data, dict) and data.get(KEY) == VERSION else None
    return query if isinstance(query, str) else None
