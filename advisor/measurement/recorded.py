"""A measurement in the contract's form, appended to a file that anyone can contribute. Knows no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from advisor.units import gib


def append(path: Path, job: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Append ``found`` (what the measuring process answered) for ``job``: one entry of a YAML list. The card is the one that was measured on.

    Raises:
        OSError: the file can not be written.
    """
    with path.open("a", encoding="utf-8") as handle:
        handle.write(yaml.safe_dump([entry(job, found)], sort_keys=False, allow_unicode=True))


def entry(job: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement: the job as stated, on the card and with the versions that ran."""
    fits = found["outcome"] == "fits"
    ran = json.loads(json.dumps(job, default=str))
    if found.get("card") is not None:
        ran.setdefault("hardware", {})["gpu"] = found["card"]
    if found.get("software"):
        framework = ran.setdefault("framework", {})
        framework["versions"] = {**(framework.get("versions") or {}), **found["software"]}
    versions = [
        f"{name} {value}" for name, value in {**(found.get("software") or {}), **{k: found[k] for k in ("driver", "cuda", "rocm") if k in found}}.items()
    ]
    digest = hashlib.sha256(json.dumps([ran, found["device"], found["outcome"]], sort_keys=True).encode()).hexdigest()[:10]
    return {
        "id": f"validate-{digest}", "job": ran,
        "measured": {
            "metric": "max_allocated", "gib": gib(found["totals"]["max_allocated"]["expected"]) if fits else None, "rank": "max", "tolerance_note": None,
        },
        "outcome": found["outcome"], "source": {"title": "advisor validate", "where": ", ".join([str(found["device"]), *versions])}, "quality": "A",
        "notes": "; ".join(found.get("notes") or []) or None,
    }  # fmt: skip
