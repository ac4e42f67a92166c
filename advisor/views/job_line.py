"""A run in one line: the settings by which people tell runs apart."""

from __future__ import annotations

from advisor import cards
from advisor.job import Job
from advisor.render import words
from advisor.views.words import plain

TELLING = (
    "model.name", "hardware.gpu", "method.kind", "batch.micro_batch", "batch.seq_len", "precision.weights", "optimizer.name",
    "activations.checkpointing", "parallel.strategy", "parallel.shard",
)  # fmt: skip


def describe(job: Job) -> str:
    """``Model: Qwen/Qwen2.5-7B · Card: A100 80 GB · Micro batch: 2 ...`` as Markdown; what is not known is left out."""
    said = [(path, job.get(path)) for path in TELLING if job.get(path) not in (None, "none") and (path, job.get(path)) != ("parallel.shard", 1)]
    return " · ".join(f"{words.field(path)}: **{plain(_shown(path, value))}**" for path, value in said)


def _shown(path: str, value: object) -> str:
    if path == "hardware.gpu":
        card = cards.find(str(value)) if isinstance(value, str) else None
        return card.name if card else str(getattr(value, "name", value))
    return words.value(value)
