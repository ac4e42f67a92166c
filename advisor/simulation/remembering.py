"""Answers of the probe kept on disk: the same job, versions and code of the probe give the same bytes.

A file an answer in ``training-memory-advisor/probes`` of the user's cache folder (``XDG_CACHE_HOME``), named by the digest of what it depends
on; ``ADVISOR_PROBE_CACHE=off`` neither reads nor writes any.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.simulation import versions

LARGEST_BYTES = 20_000_000


def key(request: Mapping[str, Any], overlay: Path | None) -> str:
    """The digest of a request, the library versions, and the probe's own code."""
    installed = {name: versions.installed(name) for name in ("torch", *versions.PACKAGES)}
    told = [request, str(overlay.name) if overlay else None, installed, sys.version_info[:2], _code()]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


@functools.cache
def _code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def folder() -> Path | None:
    """Where answers lie; None where nothing is to be kept."""
    if os.environ.get("ADVISOR_PROBE_CACHE") == "off":
        return None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-memory-advisor" / "probes"


def recall(name: str) -> dict[str, Any] | None:
    """The answer kept under a key; None where there is none that can be read."""
    where = folder()
    if where is None:
        return None
    try:
        path = where / f"{name}.json"
        if path.stat().st_size > LARGEST_BYTES:
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "ledger" in found else None


def keep(name: str, answer: Mapping[str, Any]) -> None:
    """Keep an answer; a folder that can not be written is no error."""
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(parents=True, exist_ok=True)
        making = where / f"{name}.{os.getpid()}"
        making.write_text(json.dumps(answer), encoding="utf-8")
        making.replace(where / f"{name}.json")
    except OSError:
        return
