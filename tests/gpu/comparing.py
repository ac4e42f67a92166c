"""What the probe saw beside what a card counted, as a row of a table, and the table as measurements that ``advisor accuracy`` reads.

Both sides are the ``--json`` of ``advisor probe`` and ``advisor validate``; each is a process of its own, so that no cache is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from advisor.units import GIB

ALLOCATED = 0.003  # of the peak: what 71 public single-GPU runs were met with in the median, and ten times that
PHASE = 0.02  # of the peak, phase by phase
RESERVED = 0.03  # beyond the interval between the allocator's modes
PHASES = ("forward", "backward", "step")


@dataclass(frozen=True)
class Row:
    """Bytes of one job: ``measured`` and ``probed`` allocated by phase, reserved as counted and by the allocator's mode."""

    name: str
    measured: Mapping[str, int]
    probed: Mapping[str, int]
    reserved: int
    by_mode: Mapping[str, int]

    def faults(self) -> list[str]:
        """Where the two differ by more than is allowed, in words with both numbers."""
        peak = max(self.measured.values())
        found = []
        for label, ours, theirs, most in (
            ("the allocated peak", max(self.probed.values()), peak, ALLOCATED),
            *((f"the peak of {phase}", self.probed.get(phase, 0), self.measured.get(phase, 0), PHASE) for phase in PHASES),
        ):
            if abs(ours - theirs) > most * peak:
                found.append(f"{self.name}: {label} is {theirs:,} B on the card and {ours:,} B probed ({(ours - theirs) / peak:+.2%} of the peak)")
        low, high = min(self.by_mode.values()) * (1 - RESERVED), max(self.by_mode.values()) * (1 + RESERVED)
        if not low <= self.reserved <= high:
            found.append(f"{self.name}: {self.reserved:,} B are reserved on the card, {dict(self.by_mode)} are replayed")
        return found


def row(name: str, probed: Mapping[str, Any], measured: Mapping[str, Any]) -> Row:
    """From the two commands' JSON; a loss is part of the forward pass to a card's counters."""
    phases = dict(probed["phases"])
    phases["forward"] = max(phases.get("forward", 0), phases.pop("loss", 0))
    return Row(
        name,
        {phase: int(size) for phase, size in measured["phases"].items()},
        {phase: int(size) for phase, size in phases.items()},
        int(measured["totals"]["max_reserved"]["expected"]),
        {mode: int(size) for mode, size in probed["probe"]["max_reserved_by_mode"].items()},
    )


def measurements(seen: Row, job: Mapping[str, Any], machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row as two measurements, allocated and reserved, with card, driver and versions."""
    about = ", ".join(f"{key} {value}" for key, value in machine.items() if value and key != "card")
    phases = "; ".join(f"{phase} {seen.measured.get(phase, 0):,} B, probed {seen.probed.get(phase, 0):,} B" for phase in PHASES)
    peak = max(seen.measured.values())
    return [
        {
            "id": f"{job['name']}-{metric.removeprefix('max_')}",
            "job": dict(job),
            "measured": {"metric": metric, "gib": round(size / GIB, 6), "rank": "max", "tolerance_note": None},
            "outcome": "fits",
            "source": {"title": "tests/gpu", "where": "pytest tests/gpu"},
            "quality": "A",
            "notes": f"{about} | {phases}",
        }
        for metric, size in (("max_allocated", peak), ("max_reserved", seen.reserved))
    ]


def write(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """A file of measurements."""
    path.write_text(yaml.safe_dump(list(entries), sort_keys=False, allow_unicode=True, width=160), encoding="utf-8")
