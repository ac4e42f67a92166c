"""``knowledge/*.yaml`` as one JSON file, each entry with the digest of the file that it was made from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

FILE = "_compiled.json"
KINDS = ("*.yaml", "frameworks/*.yaml", "samples/*.yaml")
"""What is read at a start. Measurements are read by `advisor accuracy` alone, and stay as they are."""

PAIRS = "!pairs"


def digest(data: bytes) -> str:
    """Tells one content of a file from another; no protection against intent."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def entries(knowledge: Path) -> dict[str, Any]:
    """``{"gpus.yaml": {"digest": …, "text": …}}`` of every file whose data comes back without loss."""
    import yaml

    found: dict[str, Any] = {}
    for file in sorted(file for kind in KINDS for file in knowledge.glob(kind)):
        raw = file.read_bytes()
        data = yaml.safe_load(raw)
        text = json.dumps(_pairs(data), ensure_ascii=False, separators=(",", ":"), default=str)
        if decoded(text) == data:  # a date would come back as text: such a file stays YAML
            found[file.relative_to(knowledge).as_posix()] = {"digest": digest(raw), "text": text}
    return found


def decoded(text: str) -> Any:
    """The data that :func:`entries` wrote as text."""
    return json.loads(text, object_hook=_mapping)


def write(root: Path) -> Path:
    """Compile ``root/knowledge`` into ``root/advisor``; the file is replaced in one step."""
    target = root / "advisor" / FILE
    fresh = target.with_suffix(".new")
    fresh.write_text(json.dumps(entries(root / "knowledge"), ensure_ascii=False), encoding="utf-8")
    return fresh.replace(target)


def _pairs(data: Any) -> Any:
    """JSON has only strings as keys; the tables map ``true`` and ``2`` too, so such a mapping is written as its pairs."""
    if isinstance(data, list):
        return [_pairs(item) for item in data]
    if not isinstance(data, dict):
        return data
    if all(isinstance(key, str) for key in data) and PAIRS not in data:
        return {key: _pairs(value) for key, value in data.items()}
    return {PAIRS: [[key, _pairs(value)] for key, value in data.items()]}


def _mapping(found: dict[str, Any]) -> dict[Any, Any]:
    return dict(found[PAIRS]) if PAIRS in found else found
