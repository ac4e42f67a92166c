"""The part of a link that comes from an error: counters, phase, rank, cards, the innermost functions of public libraries, and the ids of
marks that its text matched. Nothing of the user's own code or text is in it.

Sizes are written as they were printed (``9.79GiB``), so that the rounding of the print, which the rules use, survives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any, get_args

from advisor.compact import CompactError, read_list, read_mapping, write_list, write_mapping
from advisor.evidence import Backend, Device, Evidence, Failure, FailureKind, Frame, Process
from advisor.job import Job
from advisor.ledger import PHASES
from advisor.units import GIB, KIB, MIB, TIB, Size, read_size

MAX_FAILURES = 4
MAX_DEVICES = 16
MAX_PROCESSES = 16
MAX_MARKS = 120
MAX_FRAMES = 3  # innermost frames of public libraries: they tell the moment more finely than the phase does
LIBRARIES = frozenset({
    "torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "bitsandbytes", "vllm", "sglang", "megatron", "xformers", "flash_attn",
    "liger_kernel", "axolotl", "llamafactory", "torchtune", "torchtitan", "litgpt", "verl", "openrlhf", "swift", "unsloth", "unsloth_zoo",
    "transformer_engine", "lightning", "pytorch_lightning", "galore_torch", "apex", "sentence_transformers", "diffusers", "fairscale", "colossalai",
    "torchao", "optimum", "llmfoundry", "composer", "nemo", "ray", "jax", "flax",
})  # fmt: skip
_FRAME = re.compile(r"([a-z_]+(?:/[A-Za-z0-9_.-]{1,60}){1,8}\.py)/([A-Za-z0-9_<>]{1,80})")
LARGEST = 1 << 50
# parameter: (field of the failure, name of its tolerance)
_SIZES = {
    "requested": "requested_bytes",
    "capacity": "capacity_bytes",
    "free": "free_bytes",
    "allocated": "allocated_bytes",
    "unallocated": "reserved_unallocated_bytes",
    "pools": "private_pool_bytes",
    "allowed": "allowed_bytes",
}
_UNITS = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("TiB", TIB))
_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")
_NAME = re.compile(r"(error\d?|device\.\d{1,2}|marks)(\..*)?")


def owns(name: str) -> bool:
    """Whether a parameter is of this part of a link."""
    return bool(_NAME.fullmatch(name))


def write(job: Job, evidence: Evidence) -> list[tuple[str, str]]:
    """The parameters of failures, cards and marks."""
    first = evidence.failure
    failures = ([first] if first else []) + [f for f in evidence.failures if f is not first and not f.consequence]
    out: list[tuple[str, str]] = []
    for number, failure in enumerate(failures[:MAX_FAILURES], 1):
        out += _failure("error" if number == 1 else f"error{number}", failure)
    out += [(f"device.{number}", write_mapping(_device(d))) for number, d in enumerate(evidence.devices[:MAX_DEVICES], 1)]
    marks = _marks_only_text_shows(job, evidence, out)
    return out + ([("marks", write_list(marks))] if marks else [])


def size_text(size: int, tolerance: int) -> str:
    """A size as it was printed: the unit and decimals that give the same bytes and the same tolerance; else plain bytes."""
    for unit, scale in _UNITS:
        for decimals in range(7):
            text = f"{size / scale:.{decimals}f}{unit}"
            back = read_size(text)
            if back is not None and back.bytes == size and back.tolerance == tolerance:
                return text
    return f"{size}~{tolerance}" if tolerance else str(size)


def read_printed(text: str) -> Size | None:
    """The size of :func:`size_text`: ``9.79GiB``, ``1048576`` or ``1048576~512`` (bytes and half of the last printed digit)."""
    plain, tilde, tolerance = text.partition("~")
    size = read_size(plain)
    if size is None or (tilde and not (tolerance.isdecimal() and len(tolerance) <= 15)):
        return None
    return Size(size.bytes, int(tolerance)) if tilde else size


def _failure(prefix: str, failure: Failure) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = [(prefix, failure.kind)]
    for name, field in _SIZES.items():
        value = getattr(failure, field)
        if value is not None:
            out.append((f"{prefix}.{name}", size_text(value, failure.tolerance(field.removesuffix("_bytes")))))
    for name in ("backend", "rank", "gpu", "phase"):
        value = getattr(failure, name)
        if value is not None:
            out.append((f"{prefix}.{name}", str(value)))
    frames = [text for frame in failure.frames if (text := _public(frame)) is not None][-MAX_FRAMES:]
    if frames:
        out.append((f"{prefix}.frames", write_list(frames)))
    if failure.processes:
        out.append((f"{prefix}.processes", write_list([_process(p) for p in failure.processes[:MAX_PROCESSES]])))
    details = {k: v for k, v in failure.details if isinstance(v, (int, float, bool)) and _ID.fullmatch(k)}
    if details:
        out.append((f"{prefix}.details", write_mapping(details)))
    return out


def _public(frame: Frame) -> str | None:
    """``torch/optim/adamw.py/step`` for a frame of a public library; ``None`` for the user's own code."""
    text = f"{frame.file}/{frame.function}"
    return text if frame.file.partition("/")[0] in LIBRARIES and _FRAME.fullmatch(text) else None


def _process(process: Process) -> str:
    return f"{'own' if process.own else 'other'}-{'' if process.used_bytes is None else process.used_bytes}"


def _device(device: Device) -> dict[str, Any]:
    out: dict[str, Any] = {"index": device.index, "name": device.name, "used": device.used_bytes, "total": device.total_bytes}
    out = {k: v for k, v in out.items() if v is not None}
    if device.processes:
        out["processes"] = [_process(p) for p in device.processes[:MAX_PROCESSES]]
    return {**out, "mig": True} if device.mig else out


def _marks_only_text_shows(job: Job, evidence: Evidence, written: list[tuple[str, str]]) -> list[str]:
    """Ids of the marks that matched and would not match again from the numbers of the link alone."""
    if not (evidence.lines or evidence.failures or evidence.seen_keys or evidence.samples or evidence.devices or evidence.marks):
        return []
    from advisor.rules.engine import all_rules
    from advisor.run import resolve

    def matched(seen: Evidence) -> set[str]:
        from advisor.rules.engine import _look, _texts

        run, texts = resolve(job, seen), _texts(seen)
        return {mark.id for rule in all_rules() for mark in rule.marks if _look(mark, run, seen, texts) is not None}

    again = read(dict(written), []).with_facts(f for f in evidence.facts if f.kind in ("read", "stated"))
    return sorted(matched(evidence) - matched(again))[:MAX_MARKS]


def read(given: Mapping[str, str], dropped: list[str]) -> Evidence:
    """The evidence of a link; a sentence into ``dropped`` for everything that cannot be used."""
    failures = [f for n in range(1, MAX_FAILURES + 1) if (f := _read_failure("error" if n == 1 else f"error{n}", given, dropped)) is not None]
    devices = [d for n in range(1, MAX_DEVICES + 1) if (d := _read_device(f"device.{n}", given, dropped)) is not None]
    known = {f"{p}{s}" for p in ("error", "error2", "error3", "error4") for s in ("", *(f".{n}" for n in _PARAMETERS))}
    known |= {f"device.{n}" for n in range(1, MAX_DEVICES + 1)} | {"marks"}
    dropped.extend(f"{name[:60]}: no such figure" for name in given if owns(name) and name not in known)
    return Evidence(failures=tuple(failures), devices=tuple(devices), marks=_read_marks(given.get("marks", ""), dropped))


_PARAMETERS = (*_SIZES, "backend", "rank", "gpu", "phase", "processes", "details", "frames")


def _read_failure(prefix: str, given: Mapping[str, str], dropped: list[str]) -> Failure | None:
    if not any(name == prefix or name.startswith(f"{prefix}.") for name in given):
        return None
    kind = given.get(prefix, "gpu-memory")
    if kind not in get_args(FailureKind):
        dropped.append(f"{prefix}: {kind[:40]!r} is no kind of failure; it is read as gpu-memory")
        kind = "gpu-memory"
    values: dict[str, Any] = {}
    tolerances: list[tuple[str, int]] = []
    for name, field in _SIZES.items():
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
        found = [_FRAME.fullmatch(str(item)) for item in read_list(text)[:MAX_FRAMES]]
    except CompactError:
        found = [None]
    matches = [m for m in found if m is not None and m[1].partition("/")[0] in LIBRARIES]
    if len(matches) < len(found):
        dropped.append(f"{name}: {text[:40]!r} is no list of library functions such as torch/optim/adamw.py/step")
    return tuple(Frame("link", m[1], 0, m[2], rank=rank) for m in matches)


def _read_processes(text: str, name: str, dropped: list[str]) -> tuple[Process, ...]:
    try:
        return tuple(_as_process(str(item)) for item in read_list(text)[:MAX_PROCESSES])
    except (CompactError, ValueError):
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
    except CompactError:
        dropped.append(f"{name}: {text[:40]!r} is no list of key:value")
        return ()
    return tuple((k, v) for k, v in found.items() if isinstance(v, (int, float)) and math.isfinite(v))[:16]


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
    except (CompactError, ValueError, TypeError):
        dropped.append(f"{name}: {text[:40]!r} is no card such as index:0,used:1048576,total:17179869184")
        return None
    label = found.get("name")
    return Device("link", sizes["index"], str(label)[:100] if label is not None else None, sizes["used"], sizes["total"], processes, bool(found.get("mig")))


def _read_marks(text: str, dropped: list[str]) -> tuple[str, ...]:
    try:
        found = [str(m) for m in read_list(text)[:MAX_MARKS]]
    except CompactError:
        dropped.append(f"marks: {text[:40]!r} is no list of ids")
        return ()
    from advisor.rules.engine import all_rules

    known = {mark.id for rule in all_rules() for mark in rule.marks}
    dropped.extend(f"marks: {m[:60]!r} is no mark of this version" for m in found if m not in known)
    return tuple(m for m in found if m in known)


assert set(_SIZES.values()) <= {f.name for f in dataclass_fields(Failure)}
