"""A side of a comparison from any file: a job, a framework's config, a ledger as JSON, a memory snapshot, the log of a watched run, or a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.compare import CompareError, Side, of_job, of_json
from advisor.job import JobError, meant_as_job, read_job
from advisor.units import show

MAX_BYTES = 16 * 1024 * 1024  # of a text; snapshots have bounds of their own
LOGGED_COPIES = frozenset({"duplicate-layout", "reference-copy", "resume-on-device"})
ONES = "a job file, a framework's config, the JSON of estimate, probe or validate, a memory snapshot, or the log of a watched run"


def load(path: Path | str) -> Side:
    """One side from a file or a folder; what says how a run is set up is resolved and estimated.

    Raises:
        CompareError: it is none of them, or says too little.
        OSError: it can not be read.
    """
    file = Path(path)
    if file.is_dir():
        return of_texts(file)
    from advisor.reading.snapshot import is_json, is_pickle
    from advisor.reading.snapshot.summary import is_summary

    with file.open("rb") as handle:
        head = handle.read(400)
        pickled = is_pickle(file.name, head)
        data = b"" if pickled else head + handle.read(MAX_BYTES + 1)
    if pickled:
        return _of_pickle(file)
    if len(data) > MAX_BYTES:
        raise CompareError(f"{file.name} is larger than {show(MAX_BYTES)}")
    if is_summary(data) or is_json(data.decode(errors="replace")):
        return _of_snapshot_text(file.name, data)
    if data.lstrip()[:1] == b"{":
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and "totals" in found and "peak" in found:
            return of_json(file.name, found)
        if found is None and (side := of_log(file.name, data)) is not None:
            return side
    try:
        job = read_job(data, where=file.name)
    except JobError as error:
        if meant_as_job(data):  # a reader of any text would take it without what is wrong in it
            said = str(error)
            raise CompareError(said if said.startswith(file.name) else f"{file.name}: {said}") from None
        return of_texts(file, error)
    return of_job(file.name, job)


def of_texts(path: Path, why: JobError | None = None) -> Side:
    """The estimate of what a config, a script, a command line or a folder of them says. ``why``: it is no job file.

    Raises:
        CompareError: it names no run.
    """
    from advisor.job import Job
    from advisor.reading import read

    reading = read([(path.name, path)])
    if not _says_a_run(reading.job if isinstance(reading.job, Job) else Job()):
        raise CompareError(f"{path.name} is neither {ONES.replace(' or the log', ' nor the log')}" + (f": {why}" if why else ""))
    return of_job(path.name, reading.job, reading.evidence)


def _says_a_run(job: Any) -> bool:
    return job.get("model.name") is not None or job.get("model.config") is not None


def of_log(name: str, data: bytes) -> Side | None:
    """One side from the log of a watched run: its largest observed step, and what was found, by place. ``None``: no such log."""
    from advisor.measurement.summing import events_of, summed

    broken: list[int] = []
    found = summed(events_of(data, broken=broken), broken)
    peaks = found["peaks"]
    if not peaks:
        return None
    phase = max(peaks, key=lambda name: int(peaks[name]))
    copies = {f"{f['cause']} at {f.get('where')}": _logged(f.get("bytes")) for f in found["warnings"] if f["cause"] in LOGGED_COPIES}
    sites = {f"{f.get('where')} ({f['cause']})": _logged(f.get("bytes")) for f in found["warnings"]}
    try:  # a log is a text like any other
        job = read_job(json.dumps(found["job"]), where=name).to_dict()
    except JobError:
        job = {}
    return Side(
        name, "measured", job, {"max_allocated": peaks[phase]}, phase, found["parts"], peaks, found["resident"], copies, found["software"], sites,
        _kernels(found["attention"]),
    )  # fmt: skip


def _kernels(attention: Mapping[str, int]) -> dict[str, str]:
    """The attention that ran, by file: a line moves with every edit."""
    found: dict[str, set[str]] = {}
    for ran in attention:
        backend, _, where = ran.partition(" at ")
        found.setdefault(where.rpartition(":")[0] or where, set()).add(backend)
    return {file: ", ".join(sorted(backends)) for file, backends in sorted(found.items())}


def of_snapshot(name: str, summary: Mapping[str, Any]) -> Side:
    """One side from a snapshot's summary, of the device that held most: the peak of its trace, or what it held where nothing was recorded.

    Raises:
        CompareError: it holds neither.
    """
    sides = [side for device in summary["devices"] if (side := _of_device(name, device)) is not None]
    if not sides:
        raise CompareError(f"{name} is a memory snapshot without blocks or a trace")
    return max(sides, key=lambda side: side.totals["max_allocated"])


def _of_device(name: str, device: Mapping[str, Any]) -> Side | None:
    trace = device.get("trace")
    live = trace["peak"] if trace else device
    most = int(live["bytes"] if trace else device["allocated"])
    if not most:
        return None
    reserved = (trace or {}).get("peak_reserved") or device["reserved"] or 0
    phases = {
        "trace" if trace else "dump": most,
        **({"dump": int(device["allocated"])} if device["has_segments"] else {}),
    }
    sites: dict[str, int] = {}
    for place in live["sites"]:
        sites[place["site"]] = sites.get(place["site"], 0) + int(place["bytes"])
    totals = {"max_allocated": most, **({"max_reserved": int(reserved)} if reserved else {})}
    return Side(name, "measured", {}, totals, next(iter(phases)), {str(k): int(v) for k, v in live["parts"].items()}, phases, {}, {}, {}, sites)


def _of_pickle(file: Path) -> Side:
    from advisor.reading.snapshot.opcodes import RefusedError
    from advisor.reading.snapshot.process import summary_of

    try:
        return of_snapshot(file.name, summary_of(file))
    except RefusedError as error:
        raise CompareError(f"{file.name}: {error}") from None


def _of_snapshot_text(name: str, data: bytes) -> Side:
    from advisor.reading.snapshot.opcodes import RefusedError
    from advisor.reading.snapshot.summary import is_summary, read_summary, summarise

    try:
        return of_snapshot(name, read_summary(data) if is_summary(data) else summarise(json.loads(data), len(data)))
    except (RefusedError, ValueError, RecursionError) as error:
        raise CompareError(f"{name} is no memory snapshot that can be read: {error}") from None


def _logged(size: object) -> int:
    """Bytes of a log's entry: whoever wrote the log, nothing but a whole number is one."""
    return size if isinstance(size, int) and 0 <= size < 1 << 60 else 0
