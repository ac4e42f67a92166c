"""Which question to ask next: the unknown fact whose plausible values move the estimate most.

What the user's texts say is never asked. An assumed fact is varied over its own alternatives, else over the plausible values here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.evidence import Evidence, Fact
from advisor.job import JobError
from advisor.report import Question
from advisor.rules.estimating import ledger_of
from advisor.run import Run
from advisor.units import GIB

# Values between which real jobs differ, and how the question is put
PLAUSIBLE: dict[str, tuple[tuple[Any, ...], str]] = {
    "method.kind": (("full", "lora"), "Are all weights trained, or adapters (LoRA)?"),
    "method.base": (("none", "nf4"), "Is the frozen base quantised to 4 bit?"),
    "batch.micro_batch": ((1, 4, 16), "How many sequences go through one forward pass on one GPU (micro batch)?"),
    "batch.seq_len": ((1024, 4096, 16384), "How long are the sequences, in tokens?"),
    "activations.checkpointing": (("none", "full"), "Is gradient checkpointing on?"),
    "activations.attention": (("eager", "sdpa", "flash-2"), "Which attention implementation runs?"),
    "precision.weights": (("fp32", "bf16"), "In which dtype are the weights loaded?"),
    "parallel.strategy": (("ddp", "zero2", "zero3"), "How is the state divided over the GPUs?"),
    "optimizer.name": (("adamw", "adamw-8bit"), "Which optimizer is used?"),
}
FIRST = (
    ("model.name", "Which model is trained (a hub id, or its config.json)?"),
    ("model.config", "What does the model's config.json say?"),
    ("hardware.gpu", "Which GPU is it?"),
)
DECIDING = ("method.kind", "batch.micro_batch", "batch.seq_len")  # no framework's habit stands for these: where they are guessed, so is the verdict
LEAST = GIB // 4


def next_question(run: Run, evidence: Evidence) -> Question | None:
    """The question that moves the estimate most; ``None`` where every deciding fact is known."""
    for path, text in FIRST:
        unknown = path in run.missing or (path == "hardware.gpu" and run.usable is None and evidence.failure is None)
        if unknown:
            return Question(path, text, 0)
    if open_fields := [path for path in run.missing if path in PLAUSIBLE]:
        return _missing(run, open_fields)
    questions = [q for q in (_asked(run, path) for path in PLAUSIBLE) if q is not None and q.moves_bytes >= LEAST]
    return max(questions, key=lambda q: q.moves_bytes, default=None)


def _missing(run: Run, paths: list[str]) -> Question:
    """The question for what is missing altogether: each is varied with the others at a usual value."""
    changes: dict[str, dict[str, Any]] = {}
    for path in paths:
        section, _, name = path.partition(".")
        values = _within(run, path, PLAUSIBLE[path][0])
        changes.setdefault(section, {})[name] = values[min(1, len(values) - 1)]
    filled = run.but(**changes)
    asked = []
    for path in paths:
        section, _, name = path.partition(".")
        values = _within(run, path, PLAUSIBLE[path][0])
        ledgers = [ledger_of(filled.but(**{section: {name: value}})) for value in values]
        peaks = [ledger.peak().bytes for ledger in ledgers if ledger is not None]
        asked.append(Question(path, PLAUSIBLE[path][1], max(peaks) - min(peaks) if peaks else 0, values))
    return max(asked, key=lambda q: q.moves_bytes)


def deciding(run: Run) -> Iterator[tuple[str, dict[Any, int]]]:
    """Assumed fields for which some plausible value fits the card and another does not, with the peak of each value, bytes."""
    usable = run.usable
    if usable is None:
        return
    for path in DECIDING:
        peaks = _peaks(run, path)
        if len(peaks) >= 2 and min(peaks.values()) < usable[0] < max(peaks.values()):
            yield path, peaks


def _asked(run: Run, path: str) -> Question | None:
    peaks = _peaks(run, path)
    if len(peaks) < 2:
        return None
    return Question(path, PLAUSIBLE[path][1], max(peaks.values()) - min(peaks.values()), tuple(peaks))


def _peaks(run: Run, path: str) -> dict[Any, int]:
    """Peak bytes for each plausible value of a field that was assumed (or not settled)."""
    key = f"question-{path}"
    if key not in run._cache:
        run._cache[key] = dict(_varied(run, path)) if _open(run, path) else {}
    found: dict[Any, int] = run._cache[key]
    return found


def _open(run: Run, path: str) -> bool:
    fact: Fact | None = run.facts.get(path)
    return fact is None or fact.kind == "assumed"


def _within(run: Run, path: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sequence lengths up to the model's last position; where no two of them are, that one and a quarter of it."""
    most = run.architecture.max_positions if path == "batch.seq_len" and run.architecture is not None else None
    if most is None or max(values) <= most:
        return values
    within = tuple(dict.fromkeys(min(value, most) for value in values))
    return within if len(within) > 1 else (max(most // 4, 1), most)


def _varied(run: Run, path: str) -> Iterator[tuple[Any, int]]:
    fact = run.facts.get(path)
    values = _within(run, path, fact.alternatives if fact is not None and fact.alternatives else PLAUSIBLE[path][0])
    if path == "parallel.strategy" and run.world < 2 and (run.job.hardware.gpus_per_node or 1) < 2:
        return
    now = run.job.get(path)
    section, _, name = path.partition(".")
    for value in dict.fromkeys((now, *values)):
        if value is None:
            continue
        try:
            changed = run if value == now else run.but(**{section: {name: value}})
        except JobError:
            continue
        ledger = ledger_of(changed)
        if ledger is not None:
            yield value, ledger.peak().bytes
