"""Measured runs in the contract's form: a list of ``{id, job, measured, outcome, source, quality, notes}``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from msgspec import Struct

from advisor.job import Job, JobError, read_job

Metric = Literal["max_allocated", "max_reserved", "max_active", "nvidia-smi"]
TOTAL_OF: dict[str, str] = {  # which of the ledger's totals a measured figure is compared with
    "max_allocated": "max_allocated",
    "max_active": "max_allocated",  # active counts blocks that a stream still uses; compared with allocated, as the contract says
    "max_reserved": "max_reserved",
    "nvidia-smi": "device_used",
}
MAX_FILE_BYTES = 50_000_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class MeasurementError(ValueError):
    """A file of measurements that can not be read; the message says why."""


class Measurement(Struct, frozen=True):
    """A measured run. ``gib`` is ``None`` where the run ran out; ``problem`` says why an entry could not be read."""

    id: str
    job: Job | None
    problem: str | None
    metric: str
    gib: float | None
    rank: str
    outcome: Literal["fits", "ooms"]
    source: str
    where: str
    quality: str
    notes: str | None


def load(paths: Iterable[Path | str]) -> Iterator[Measurement]:
    """Every measurement of the given files; a folder stands for its ``*.yaml`` files.

    Raises:
        MeasurementError: a file is missing, too large or no list. One entry that is wrong has a ``problem`` instead.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from load(sorted(path.glob("*.yaml")))
            continue
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise MeasurementError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes")
            data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506  a SafeLoader
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise MeasurementError(f"{path} can not be read: {str(error).splitlines()[0]}") from None
        if not isinstance(data, list):
            raise MeasurementError(f"{path} is no list of measurements")
        for index, entry in enumerate(data):
            yield _measurement(entry, f"{path.name} entry {index + 1}", path.stem)


def _measurement(entry: Any, where: str, file: str) -> Measurement:
    """One entry; what is wrong with it is its ``problem``, so that the others keep their figures."""
    content = entry if isinstance(entry, dict) else {}
    measured, source = (value if isinstance(value, dict) else {} for value in (content.get("measured"), content.get("source")))
    metric, size = measured.get("metric"), measured.get("gib")
    job, problem = None, None
    if not measured or "id" not in content:
        problem = f"{where} has not the form {{id, job, measured, ...}}"
    elif metric not in TOTAL_OF:
        problem = f"metric {metric!r} is none of {', '.join(TOTAL_OF)}"
    elif size is not None and (isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < math.inf):
        problem = f"measured.gib is {size!r}, and a positive number of GiB is meant"
    else:
        try:
            job = read_job(content.get("job") or {})
        except JobError as error:
            problem = f"the job can not be read: {error}"
    return Measurement(
        id=str(content.get("id", where)),
        job=job,
        problem=problem,
        metric=str(metric),
        gib=float(size) if job is not None and size is not None else None,
        rank=str(measured.get("rank") or "unstated"),
        outcome="ooms" if content.get("outcome") == "ooms" else "fits",
        source=str(source.get("title") or file),
        where=str(source.get("where") or ""),
        quality=str(content.get("quality") or "?"),
        notes=content.get("notes"),
    )
