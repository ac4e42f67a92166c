"""The machine that a measurement was made on, as others need it to judge the figures: card, driver, versions of what allocates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

DRIVER = Path("/proc/driver/nvidia/version")


def described(device: str) -> dict[str, Any]:
    """``device``: a name; ``card``: an id of the catalogue, or name and memory; ``driver`` and ``cuda`` or ``rocm``: versions, where they are known."""
    if device == "cpu":
        return {"device": "CPU", "card": None}
    from advisor import cards

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    card = cards.find(seen.name, seen.total_memory)
    known = card.id if card is not None else {"name": seen.name[:200], "memory_gib": round(seen.total_memory / 2**30, 3)}
    found = {"device": seen.name, "card": known, "driver": driver(), "cuda": torch.version.cuda, "rocm": torch.version.hip}
    return {key: value for key, value in found.items() if value is not None}


def driver() -> str | None:
    """The NVIDIA kernel module's version, from where it writes it itself (Linux)."""
    try:
        text = DRIVER.read_text(encoding="ascii", errors="replace")[:2000]
    except OSError:
        return None
    found = re.search(r"Kernel Module[^\n]*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else None
