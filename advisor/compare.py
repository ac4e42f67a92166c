"""Two sides of memory (:mod:`advisor.sides` loads them), part by part, phase by phase, copy by copy, place by place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from advisor.job import Job, fields
from advisor.units import show, signed

if TYPE_CHECKING:
    from advisor.evidence import Evidence

WIDTH = {"fp64": 8, "fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "int8": 1, "fp8": 1, "nf4": 0.5, "fp4": 0.5, "int4": 0.5}
ON_CARD = ("driver", "cuda", "rocm")  # what a measurement says of its machine
MAX_PLACES = 20  # rows of a table of places: the largest differences


class CompareError(ValueError):
    """A file that is neither a job, a ledger nor a baseline; the message says what was found."""


class Side(Struct, frozen=True):
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
    sites: Mapping[str, int] = field(default_factory=dict)  # by file:line, where a snapshot or a log knows it
    kernels: Mapping[str, str] = field(default_factory=dict)  # the attention that ran, by file, where a log knows it


class Row(Struct, frozen=True):
    """One figure of both sides; ``None``: that side has no such thing."""

    name: str
    a: int | None
    b: int | None

    @property
    def difference(self) -> int:
        """b less a, bytes."""
        return (self.b or 0) - (self.a or 0)


class Comparison(Struct, frozen=True):
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
    sites: tuple[Row, ...] = ()
    kernels: tuple[tuple[str, str | None, str | None], ...] = ()

    @property
    def tables(self) -> tuple[tuple[str, tuple[Row, ...]], ...]:
        """Titles and the rows that differ, the largest difference first."""
        found = (("Part at the peak", self.parts), ("Largest in phase", self.phases), ("Place", self.sites))
        moved = [(title, sorted((row for row in rows if row.difference), key=lambda row: -abs(row.difference))) for title, rows in found]
        return tuple((title, tuple(rows[: MAX_PLACES if title == "Place" else len(rows)])) for title, rows in moved if rows)


def of_job(name: str, job: Job, evidence: Evidence | None = None) -> Side:
    """The estimate of a job, with what was read beside it.

    Raises:
        CompareError: a deciding fact is missing.
    """
    from advisor.render.json import of_ledger
    from advisor.run import resolve
    from advisor.verdict import of_run

    run = resolve(job, *([] if evidence is None else [evidence]))
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
            {**{str(k): str(v) for k, v in (data.get("software") or {}).items()}, **{k: str(data[k]) for k in ON_CARD if isinstance(data.get(k), str)}},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CompareError(f"{name} has not the ledger's form: {type(error).__name__} {error}") from None


def compare(a: Side, b: Side) -> Comparison:
    """What differs from a to b."""
    return Comparison(
        a, b, settings(a.job, b.job), _rows(a.totals, b.totals), _rows(a.parts, b.parts), _rows(a.phases, b.phases),
        tuple(sorted(set(a.copies) - set(b.copies))), tuple(sorted(set(b.copies) - set(a.copies))),
        _texts(a.software, b.software), _rows(a.sites, b.sites), _texts(a.kernels, b.kernels),
    )  # fmt: skip


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Job fields that differ: path, before, after."""
    return tuple((path, x, y) for path in fields() if (x := _at(a, path)) != (y := _at(b, path)))


def _at(job: Mapping[str, Any], path: str) -> Any:
    value: Any = job
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return list(value) if isinstance(value, tuple) else value


def _texts(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[tuple[str, str | None, str | None], ...]:
    return tuple((name, a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name))


def _rows(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[Row, ...]:
    return tuple(Row(name, a.get(name), b.get(name)) for name in {**a, **b})


def markdown(found: Comparison) -> str:
    """A comment for a pull request: the peak in one line, then what moved."""
    before, after = found.a.totals.get("max_allocated", 0), found.b.totals.get("max_allocated", 0)
    share = f", {(after / before - 1) * 100:+.1f} %" if before else ""
    lines = [f"**Peak memory: {show(before)} → {show(after)} ({signed(after - before)}{share})**", ""]
    lines += [f"`{found.a.name}` ({found.a.kind}, peak in {found.a.phase}) against `{found.b.name}` ({found.b.kind}, peak in {found.b.phase}).", ""]
    heads = "before | after" if found.a.kind == found.b.kind else f"{found.a.kind} | {found.b.kind}"  # two kinds of one run are no before and after
    for title, rows in found.tables:
        lines += [f"| {title} | {heads} | difference |", "|---|--:|--:|--:|"]
        lines += [f"| {_cell(row.name)} | {_size(row.a)} | {_size(row.b)} | {signed(row.difference)} |" for row in rows] + [""]
    if found.settings:
        lines += [f"| Setting | {heads} |", "|---|---|---|"]
        lines += [f"| {path} | {_text(x)} | {_text(y)} |" for path, x, y in found.settings] + [""]
    if found.a.kind == found.b.kind:  # a measurement knows no copies by the names that an estimate gives them
        lines += [f"- new copy: {name}" for name in found.copies_new] + [f"- copy gone: {name}" for name in found.copies_gone]
    lines += [f"- attention in {_cell(name)}: {x or 'none'} → {y or 'none'}" for name, x, y in found.kernels]
    lines += [f"- {name}: {x or 'none'} → {y or 'none'}" for name, x, y in found.software]
    return "\n".join(lines).rstrip() + "\n"


def _cell(name: str) -> str:
    return name.replace("|", "/").replace("\n", " ")[:160]


def _size(size: int | None) -> str:
    return "–" if size is None else show(size)


def _text(value: Any) -> str:
    return "–" if value is None else f"`{json.dumps(value, default=str)[:80].replace('|', '/')}`"
