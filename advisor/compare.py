"""Any two of: job files, ledgers as JSON (estimated, probed, measured), logs of watched runs, baselines. Part by part, phase by phase, copy by copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.job import Job, JobError, fields, read_job
from advisor.units import show, signed

MAX_BYTES = 16 * 1024 * 1024
WIDTH = {"fp64": 8, "fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "int8": 1, "fp8": 1, "nf4": 0.5, "fp4": 0.5, "int4": 0.5}

LOGGED_COPIES = frozenset({"duplicate-layout", "reference-copy", "resume-on-device"})


class CompareError(ValueError):
    """A file that is neither a job, a ledger nor a baseline; the message says what was found."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: sizes in bytes; ``dtypes`` by part; ``copies`` are the names of holdings that repeat another's values."""

    name: str
    kind: str
    job: Mapping[str, Any]
    totals: Mapping[str, int]
    phase: str
    parts: Mapping[str, int]
    phases: Mapping[str, int]
    dtypes: Mapping[str, Mapping[str, int]]  # bytes by dtype
    copies: Mapping[str, int]
    software: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both sides; ``None``: that side has no such thing."""

    name: str
    a: int | None
    b: int | None

    @property
    def difference(self) -> int:
        """b less a, bytes."""
        return (self.b or 0) - (self.a or 0)


@dataclass(frozen=True)
class Comparison:
    """What differs from a to b."""

    a: Side
    b: Side
    settings: tuple[tuple[str, Any, Any], ...]
    totals: tuple[Row, ...]
    parts: tuple[Row, ...]
    phases: tuple[Row, ...]
    copies_gone: tuple[str, ...]
    copies_new: tuple[str, ...]
    software: tuple[tuple[str, str | None, str | None], ...]


def load(path: Path | str) -> Side:
    """One side from a file; a job is resolved and estimated.

    Raises:
        CompareError, JobError: the file is none of them.
        OSError: it can not be read.
    """
    file = Path(path)
    with file.open("rb") as handle:
        data = handle.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CompareError(f"{file.name} is larger than {show(MAX_BYTES)}")
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
        says = "is neither a job file, the JSON of estimate, probe or validate, nor the log of a watched run"
        raise CompareError(f"{file.name} {says}: {error}") from None
    return of_job(file.name, job)


def of_job(name: str, job: Job) -> Side:
    """The estimate of a job.

    Raises:
        CompareError: a deciding fact is missing.
    """
    from advisor.render.json import of_ledger
    from advisor.run import resolve
    from advisor.verdict import of_run

    run = resolve(job)
    ledger, verdict, sentence = of_run(run)
    if ledger is None:
        raise CompareError(f"{name} can not be estimated: {sentence}")
    return of_json(name, of_ledger(run, ledger, verdict, sentence))


def of_json(name: str, data: Mapping[str, Any]) -> Side:
    """One side from the ledger's JSON form.

    Raises:
        CompareError: a key of the form is missing or of another type.
    """
    try:
        holdings = [h for h in data["peak"]["holdings"] if h.get("device", "gpu") == "gpu"]
        parts: dict[str, int] = {}
        dtypes: dict[str, dict[str, int]] = {}
        copies: dict[str, int] = {}
        for holding in holdings:
            parts[holding["part"]] = parts.get(holding["part"], 0) + int(holding["bytes"])
            if holding.get("dtype"):
                by_dtype = dtypes.setdefault(holding["part"], {})
                by_dtype[str(holding["dtype"])] = by_dtype.get(str(holding["dtype"]), 0) + int(holding["bytes"])
            if holding.get("copy_of") and holding["bytes"]:
                copies[str(holding["name"])] = copies.get(str(holding["name"]), 0) + int(holding["bytes"])
        return Side(
            name, str(data["kind"]), data.get("job") or {}, {k: int(v["expected"]) for k, v in data["totals"].items()}, str(data["peak"]["phase"]), parts,
            {k: int(v) for k, v in (data.get("phases") or {}).items()}, dtypes, copies,
            {str(k): str(v) for k, v in (data.get("software") or {}).items()},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CompareError(f"{name} has not the ledger's form: {type(error).__name__} {error}") from None


def of_log(name: str, data: bytes) -> Side | None:
    """One side from the log of a watched run: its largest observed step, and the copies that were found, by place. ``None``: no such log."""
    from advisor.measurement.summing import events_of, summed

    broken: list[int] = []
    found = summed(events_of(data, broken=broken), broken)
    peaks = found["peaks"]
    if not peaks:
        return None
    phase = max(peaks, key=lambda name: int(peaks[name]))
    copies = {f"{f['cause']} at {f.get('where')}": _logged(f.get("bytes")) for f in found["warnings"] if f["cause"] in LOGGED_COPIES}
    return Side(
        name, "measured", {}, {"max_allocated": peaks[phase]}, phase, found["parts"], peaks, {}, copies, {"torch": found["torch"]} if found["torch"] else {}
    )


def _logged(size: object) -> int:
    """Bytes of a log's entry: whoever wrote the log, nothing but a whole number is one."""
    return size if isinstance(size, int) and 0 <= size < 1 << 60 else 0


def compare(a: Side, b: Side) -> Comparison:
    """What differs from a to b."""
    return Comparison(
        a, b, settings(a.job, b.job), _rows(a.totals, b.totals), _rows(a.parts, b.parts), _rows(a.phases, b.phases),
        tuple(sorted(set(a.copies) - set(b.copies))), tuple(sorted(set(b.copies) - set(a.copies))),
        tuple((n, a.software.get(n), b.software.get(n)) for n in sorted({*a.software, *b.software}) if a.software.get(n) != b.software.get(n)),
    )  # fmt: skip


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Job fields that differ: path, before, after."""
    return tuple((path, x, y) for path in fields() if (x := _at(a, path)) != (y := _at(b, path)))


def _at(job: Mapping[str, Any], path: str) -> Any:
    value: Any = job
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return list(value) if isinstance(value, tuple) else value


def _rows(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[Row, ...]:
    return tuple(Row(name, a.get(name), b.get(name)) for name in {**a, **b})


def markdown(found: Comparison) -> str:
    """A comment for a pull request: the peak in one line, then what moved."""
    before, after = found.a.totals.get("max_allocated", 0), found.b.totals.get("max_allocated", 0)
    share = f", {(after / before - 1) * 100:+.1f} %" if before else ""
    lines = [f"**Peak memory: {show(before)} → {show(after)} ({signed(after - before)}{share})**", ""]
    lines += [f"`{found.a.name}` ({found.a.kind}, peak in {found.a.phase}) against `{found.b.name}` ({found.b.kind}, peak in {found.b.phase}).", ""]
    for title, rows in (("Part at the peak", found.parts), ("Largest in phase", found.phases)):
        moved = sorted((row for row in rows if row.difference), key=lambda row: -abs(row.difference))
        if moved:
            lines += [f"| {title} | before | after | difference |", "|---|--:|--:|--:|"]
            lines += [f"| {row.name} | {_size(row.a)} | {_size(row.b)} | {signed(row.difference)} |" for row in moved]
            lines.append("")
    if found.settings:
        lines += ["| Setting | before | after |", "|---|---|---|"]
        lines += [f"| {path} | {_text(x)} | {_text(y)} |" for path, x, y in found.settings] + [""]
    lines += [f"- new copy: {name}" for name in found.copies_new] + [f"- copy gone: {name}" for name in found.copies_gone]
    lines += [f"- {name}: {x or 'none'} → {y or 'none'}" for name, x, y in found.software]
    return "\n".join(lines).rstrip() + "\n"


def _size(size: int | None) -> str:
    return "–" if size is None else show(size)


def _text(value: Any) -> str:
    return "–" if value is None else f"`{json.dumps(value, default=str)[:80].replace('|', '/')}`"
