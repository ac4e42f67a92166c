"""An approved memory profile of a job, in a file fit for review in git, and what has drifted from it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from msgspec import Struct

from advisor.compare import WIDTH, CompareError, Side, compare
from advisor.units import show, signed

VERSION = 1
TOLERANCE = 0.03  # of the peak: what a change may add without being drift
KERNELS = ("activations.attention", "activations.loss", "activations.kernels", "activations.checkpointing", "activations.compile")
CHECKS = ("copies", "dtypes", "kernels", "software", "peak")
BESIDE = frozenset({"allocator", "context"})  # held beside what is allocated: no part of the peak
WIDENS = " (framework-upcast)"  # what a watched run's side puts behind such a place
MAX_BYTES = 4 * 1024 * 1024


class Drift(Struct, frozen=True):
    """One difference that a reviewer has to approve. ``check``: one of :data:`CHECKS`."""

    check: Literal["copies", "dtypes", "kernels", "software", "peak"]
    text: str


def content(side: Side, *, approved: bool = False) -> dict[str, Any]:
    """The profile as plain data."""
    return {
        "advisor_baseline": VERSION, "approved": datetime.date.today().isoformat() if approved else None, "name": side.name, "kind": side.kind,
        "peak": {"phase": side.phase, **dict(side.totals)}, "parts": dict(side.parts), "phases": dict(side.phases),
        "dtypes": {part: dict(found) for part, found in side.dtypes.items()}, "copies": dict(side.copies), "software": dict(side.software),
        "job": dict(side.job), **({"sites": dict(side.sites)} if side.sites else {}), **({"kernels": dict(side.kernels)} if side.kernels else {}),
    }  # fmt: skip


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write it as YAML, keys in their order, so that a change is a small diff."""
    path.write_text(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


def is_one(head: bytes) -> bool:
    """Whether a file's first bytes are a baseline's, of whatever version."""
    return b"advisor_baseline" in head


def read(path: Path) -> tuple[Side, str | None]:
    """The profile and the day it was approved.

    Raises:
        CompareError: no baseline, or one of another version.
    """
    try:
        text = path.read_bytes()[: MAX_BYTES + 1]
        data = yaml.safe_load(text) if len(text) <= MAX_BYTES else None
    except yaml.YAMLError:
        data = None
    if not isinstance(data, dict) or data.get("advisor_baseline") != VERSION:
        raise CompareError(f"{path.name} is no baseline of version {VERSION}; `advisor baseline save JOB --to {path.name}` writes one")
    try:
        peak = dict(data["peak"])
        side = Side(
            path.name, str(data["kind"]), data.get("job") or {}, {k: int(v) for k, v in peak.items() if k != "phase"}, str(peak["phase"]), dict(data["parts"]),
            dict(data["phases"]), {k: dict(v) for k, v in data["dtypes"].items()}, dict(data["copies"]), dict(data["software"]),
            {str(k): int(v) for k, v in (data.get("sites") or {}).items()}, {str(k): str(v) for k, v in (data.get("kernels") or {}).items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CompareError(f"{path.name} is not in the baseline's form: {type(error).__name__} {error}") from None
    approved = data.get("approved")
    return side, None if approved is None else str(approved)


def approve(path: Path) -> None:
    """Mark a baseline as approved today.

    Raises:
        CompareError: no baseline.
    """
    read(path)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    write(path, {**data, "approved": datetime.date.today().isoformat()})


def drift(approved: Side, now: Side, tolerance: float = TOLERANCE) -> tuple[Drift, ...]:
    """What has appeared, widened, changed or grown. Narrower, smaller and gone is no drift.

    Raises:
        CompareError: the two are of different kinds (an estimate is no measurement).
    """
    if approved.kind != now.kind:
        raise CompareError(f"the baseline is {approved.kind} and {now.name} is {now.kind}; compare like with like, or save a new baseline")
    found = compare(approved, now)
    out = [Drift("copies", f"a copy appeared: {name} ({show(now.copies[name])})") for name in found.copies_new]
    for part, dtypes in now.dtypes.items():
        before = approved.dtypes.get(part)
        if before and (_most(dtypes) > _most(before) or _widest(dtypes) > _widest(before)):
            out.append(Drift("dtypes", f"{part} widened: {_said(before)} to {_said(dtypes)}"))
    known = {_widening_file(site) for site in approved.sites}
    for site, size in now.sites.items():
        file = _widening_file(site)
        if file is not None and file not in known:
            out.append(Drift("dtypes", f"a tensor is widened at {site.removesuffix(WIDENS)} ({show(size)} a step), in a file that widened none"))
    out += [Drift("kernels", f"{path} changed: {x} to {y}") for path, x, y in found.settings if path in KERNELS]
    seen = set(approved.kernels.values())
    for file, before_ran, ran in found.kernels:  # a file that no longer runs is none; a new one is where nothing of the kind has run
        if seen and ran is not None and (before_ran is not None or ran not in seen):
            out.append(Drift("kernels", f"the attention in {file} changed: {before_ran or ', '.join(sorted(seen))} to {ran}"))
    out += [Drift("software", f"{name} changed: {x or 'none'} to {y or 'none'}") for name, x, y in found.software]
    before_peak, peak = approved.totals.get("max_allocated", 0), now.totals.get("max_allocated", 0)
    if before_peak and peak > before_peak * (1 + tolerance):
        rows = sorted((row for row in found.parts if row.name not in BESIDE and row.difference > 0), key=lambda row: -row.difference)
        grown = ", ".join(f"{row.name} {signed(row.difference)}" for row in rows[:3])
        where = f": {grown}" if grown else f", now in {now.phase}" if now.phase else ""  # a log of an unobserved peak has no parts of it
        out.append(Drift("peak", f"the peak grew from {show(before_peak)} to {show(peak)} ({(peak / before_peak - 1) * 100:+.1f} %){where}"))
    return tuple(out)


def _widening_file(site: str) -> str | None:
    """The file of a place that widens, as a watched run's side names it; ``None``: another place. A line moves with every edit."""
    return site.removesuffix(WIDENS).rpartition(":")[0] if site.endswith(WIDENS) else None


def _most(dtypes: Mapping[str, int]) -> float:
    """The width of the dtype that holds most."""
    return WIDTH.get(max(dtypes, key=lambda name: dtypes[name]), 0)


def _widest(dtypes: Mapping[str, int]) -> float:
    return max(WIDTH.get(name, 0) for name in dtypes)


def _said(dtypes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {show(size)}" for name, size in sorted(dtypes.items(), key=lambda item: -item[1]))
