"""The error's part of a link read back, each figure within its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from advisor.evidence import Backend, Device, Evidence, Failure, FailureKind, Frame, Process
from advisor.ledger import PHASES
from advisor.share.failure_writing import FRAME, LIBRARIES, MAX_DEVICES, MAX_FAILURES, MAX_FRAMES, MAX_MARKS, MAX_PROCESSES, SIZES, is_detail, owns
from advisor.share.notation import NotationError, read_list, read_mapping
from advisor.units import Size, read_size

LARGEST = 1 << 50


def read(given: Mapping[str, str], dropped: list[str]) -> Evidence:
    """The evidence of a link; a sentence into ``dropped`` for everything that cannot be used."""
    failures = [f for n in range(1, MAX_FAILURES + 1) if (f := _read_failure("error" if n == 1 else f"error{n}", given, dropped)) is not None]
    devices = [d for n in range(1, MAX_DEVICES + 1) if (d := _read_device(f"device.{n}", given, dropped)) is not None]
    known = {f"{p}{s}" for p in ("error", "error2", "error3", "error4") for s in ("", *(f".{n}" for n in _PARAMETERS))}
    known |= {f"device.{n}" for n in range(1, MAX_DEVICES + 1)} | {"marks"}
    dropped.extend(f"{name[:60]}: no such figure" for name in given if owns(name) and name not in known)
    return Evidence(failures=tuple(failures), devices=tuple(devices), marks=_read_marks(given.get("marks", ""), dropped))


_PARAMETERS = (*SIZES, "backend", "rank", "gpu", "phase", "processes", "details", "frames")


def _read_failure(prefix: str, given: Mapping[str, str], dropped: list[str]) -> Failure | None:
    if not any(name == prefix or name.startswith(f"{prefix}.") for name in given):
        return None
    kind = given.get(prefix, "gpu-memory")
    if kind not in get_args(FailureKind):
        dropped.append(f"{prefix}: {kind[:40]!r} is no kind of failure; it is read as gpu-memory")
        kind = "gpu-memory"
    values: dict[str, Any] = {}
    tolerances: list[tuple[str, int]] = []
    for name, field in SIZES.items():
        text = given.get(f"{prefix}.{name}")
        if text is None:
            continue
        size = read_printed(text)
        if size is None or size.bytes > LARGEST:
            dropped.append(f"{prefix}.{name}: {text[:40]!r} is no size such as 9.79GiB")
            continue
        values[field] = size.bytes
        if size.tolerance:
            tolerances.append((field.removesuffix("_bytes"), size.tolerance))
    for name in ("rank", "gpu"):
        text = given.get(f"{prefix}.{name}")
        if text is not None and text.isdecimal() and len(text) <= 6:
            values[name] = int(text)
        elif text is not None:
            dropped.append(f"{prefix}.{name}: {text[:40]!r} is no number of a rank or card")
    for name, allowed in (("backend", get_args(Backend)), ("phase", PHASES)):
        text = given.get(f"{prefix}.{name}")
        if text in allowed:
            values[name] = text
        elif text is not None:
            dropped.append(f"{prefix}.{name}: {text[:40]!r} is none of {', '.join(allowed)}")
    values["processes"] = _read_processes(given.get(f"{prefix}.processes", ""), f"{prefix}.processes", dropped)
    values["details"] = _read_details(given.get(f"{prefix}.details", ""), f"{prefix}.details", dropped)
    values["frames"] = _read_frames(given.get(f"{prefix}.frames", ""), f"{prefix}.frames", values.get("rank"), dropped)
    return Failure(kind, "link", "", tolerances=tuple(tolerances), **values)  # type: ignore[arg-type]  # checked against FailureKind above


def _read_frames(text: str, name: str, rank: int | None, dropped: list[str]) -> tuple[Frame, ...]:
    try:
        found = [FRAME.fullmatch(str(item)) for item in read_list(text)[:MAX_FRAMES]]
    except NotationError:
        found = [None]
    matches = [m for m in found if m is not None and m[1].partition("/")[0] in LIBRARIES]
    if len(matches) < len(found):
        dropped.append(f"{name}: {text[:40]!r} is no list of library functions such as torch/optim/adamw.py/step")
    return tuple(Frame("link", m[1], 0, m[2], rank=rank) for m in matches)


def _read_processes(text: str, name: str, dropped: list[str]) -> tuple[Process, ...]:
    try:
        return tuple(_as_process(str(item)) for item in read_list(text)[:MAX_PROCESSES])
    except (NotationError, ValueError):
        dropped.append(f"{name}: {text[:40]!r} is no list of processes such as own-17179869184,other-1048576")
        return ()


def _as_process(text: str) -> Process:
    who, _, size = text.partition("-")
    if who not in ("own", "other") or (size and not (size.isdecimal() and int(size) <= LARGEST)):
        raise ValueError(text)
    return Process(None, int(size) if size else None, own=who == "own")


def _read_details(text: str, name: str, dropped: list[str]) -> tuple[tuple[str, Any], ...]:
    try:
        found = read_mapping(text)
    except NotationError:
        dropped.append(f"{name}: {text[:40]!r} is no list of key:value")
        return ()
    return tuple((k, v) for k, v in found.items() if is_detail(k, v))[:16]


def _read_device(name: str, given: Mapping[str, str], dropped: list[str]) -> Device | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        found = read_mapping(text)
        sizes = {k: found.get(k) for k in ("used", "total", "index")}
        if any(v is not None and (not isinstance(v, int) or not 0 <= v <= LARGEST) for v in sizes.values()):
            raise ValueError(text)
        processes = tuple(_as_process(str(p)) for p in (found.get("processes") or [])[:MAX_PROCESSES])
    except (NotationError, ValueError, TypeError):
        dropped.append(f"{name}: {text[:40]!r} is no card such as index:0,used:1048576,total:17179869184")
        return None
    label = found.get("name")
    return Device("link", sizes["index"], str(label)[:100] if label is not None else None, sizes["used"], sizes["total"], processes, bool(found.get("mig")))


def _read_marks(text: str, dropped: list[str]) -> tuple[str, ...]:
    try:
        found = [str(m) for m in read_list(text)[:MAX_MARKS]]
    except NotationError:
        dropped.append(f"marks: {text[:40]!r} is no list of ids")
        return ()
    from advisor.rules import observing
    from advisor.rules.engine import all_rules

    known = {mark.id for rule in all_rules() for mark in rule.marks}
    causes = frozenset(rule.id for rule in all_rules())
    good = tuple(m for m in found if m in known or observing.known(m, causes))
    dropped.extend(f"marks: {m[:60]!r} is no mark of this version" for m in found if m not in good)
    return good


def read_printed(text: str) -> Size | None:
    """The size of :func:`size_text`: ``9.79GiB``, ``1048576`` or ``1048576~512`` (bytes and half of the last printed digit)."""
    plain, tilde, tolerance = text.partition("~")
    size = read_size(plain)
    if size is None or (tilde and not (tolerance.isdecimal() and len(tolerance) <= 15)):
        return None
    return Size(size.bytes, int(tolerance)) if tilde else size
