"""What of an error is in a link: counters, phase, rank, cards, the innermost functions of public libraries, and the ids of marks that its
text matched. Nothing of the user's own code or text is in it.

Sizes are written as they were printed (``9.79GiB``), so that the rounding of the print, which the rules use, survives.
"""

from __future__ import annotations

import math
from typing import Any

from advisor.evidence import Device, Evidence, Failure, Frame, Process
from advisor.job import Job
from advisor.reading.pattern import pattern
from advisor.resolving.versions_shown import CARRIED, of_failure
from advisor.share.notation import write_list, write_mapping
from advisor.units import GIB, KIB, MIB, TIB, read_size

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
FRAME = pattern(r"([a-z_]+(?:/[A-Za-z0-9_.-]{1,60}){1,8}\.py)/([A-Za-z0-9_<>]{1,80})")
# parameter: (field of the failure, name of its tolerance)
SIZES = {
    "requested": "requested_bytes",
    "capacity": "capacity_bytes",
    "free": "free_bytes",
    "allocated": "allocated_bytes",
    "unallocated": "reserved_unallocated_bytes",
    "pools": "private_pool_bytes",
    "allowed": "allowed_bytes",
}
# details that are words of the readers' own, never of the text: why an engine did not start, what kind of collective failure it was
WORDS = frozenset({"what", "why", "engine"})
BOUND = pattern(r"[<>]=?\d{1,4}(?:\.\d{1,4}){0,3}(?:,[<>]=?\d{1,4}(?:\.\d{1,4}){0,3}){0,3}")
WORD = pattern(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,39}")
_UNITS = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("TiB", TIB))
_ID = pattern(r"[a-z0-9][a-z0-9_.-]{0,79}")
_NAME = pattern(r"(error\d?|device\.\d{1,2}|marks)(\..*)?")


def owns(name: str) -> bool:
    """Whether a parameter is of this part of a link."""
    return bool(_NAME.fullmatch(name))


def write(job: Job, evidence: Evidence) -> list[tuple[str, str]]:
    """The parameters of failures, cards and marks."""
    first = evidence.failure
    # where every failure follows from another one that is not shown, all are needed to tell so
    failures = ([first] if first else []) + [f for f in evidence.failures if f is not first and (not f.consequence or (first and first.consequence))]
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


def _failure(prefix: str, failure: Failure) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = [(prefix, failure.kind)]
    for name, field in SIZES.items():
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
    details = {k: v for k, v in failure.details if _ID.fullmatch(k) and is_detail(k, v)}
    details |= {f"{CARRIED}{package}": specifier for package, specifier in of_failure(failure)}
    if details:
        out.append((f"{prefix}.details", write_mapping(details)))
    return out


def is_detail(name: str, value: Any) -> bool:
    """Whether a detail of a failure travels: a figure, or a word that a reader gave it."""
    if isinstance(value, (int, float)):
        return math.isfinite(value)
    if name.startswith(CARRIED):
        return isinstance(value, str) and BOUND.fullmatch(value) is not None
    return name in WORDS and isinstance(value, str) and WORD.fullmatch(value) is not None


def _public(frame: Frame) -> str | None:
    """``torch/optim/adamw.py/step`` for a frame of a public library; ``None`` for the user's own code."""
    text = f"{frame.file}/{frame.function}"
    return text if frame.file.partition("/")[0] in LIBRARIES and FRAME.fullmatch(text) else None


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
    from advisor.rules import observing
    from advisor.rules.engine import all_rules
    from advisor.run import resolve
    from advisor.share.failure_reading import read

    def matched(seen: Evidence) -> set[str]:
        from advisor.rules.engine import _look, _texts

        run, texts = resolve(job, seen), _texts(seen)
        return {mark.id for rule in all_rules() for mark in rule.marks if _look(mark, run, seen, texts) is not None}

    again = read(dict(written), []).with_facts(f for f in evidence.facts if f.kind in ("read", "stated"))
    causes = frozenset(rule.id for rule in all_rules())
    answered = {mark for mark in evidence.marks if observing.known(mark, causes)}
    return sorted((matched(evidence) - matched(again)) | answered)[:MAX_MARKS]
