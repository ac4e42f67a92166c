"""What can be said where the job is not known well enough for an estimate: what its own log measured, and what it needs at the least."""

from __future__ import annotations

import re

from advisor.arithmetic.outside import CONTEXT_HIGH  # of one process, on top of what PyTorch reserves
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Verdict
from advisor.rules import static_state
from advisor.rules.situation import parameters
from advisor.run import Run
from advisor.units import show

NARROW = 0.93  # of the card: beyond it the next longer batch may fail
WORDS = {
    "weights": "weights", "gradients": "gradients", "optimizer": "optimizer state", "reference": "reference model", "reward": "reward model",
    "critic": "critic",
}  # fmt: skip
# what trainers print once training is over: transformers Trainer.train (train_runtime), Unsloth's notebooks, Lightning
_FINISHED = pattern(
    r"['\"]?train_runtime['\"]?|seconds used for training|TrainOutput\(|Training completed|`Trainer\.fit` stopped|train_samples_per_second", re.IGNORECASE
)


STEADY = 10  # steps after which a footprint no longer rises by itself
ROOMY = 0.5  # of the card: no batch of the same settings doubles a peak that long steps have shown


def _steady(run: Run, evidence: Evidence) -> bool:
    """Whether a log without a failure shows steps enough, and the peak leaves half of the card."""
    steps = [s.step for s in evidence.samples if s.step is not None]
    peak = max((max(s.peak_reserved_bytes or 0, s.peak_allocated_bytes or 0) for s in evidence.samples), default=0)
    return max(steps, default=0) >= STEADY and run.usable is not None and peak > 0 and peak + CONTEXT_HIGH <= ROOMY * run.usable[0]


_LOSS = pattern(r"\bloss['\"]?\s{0,2}[:=]\s{0,2}\d", re.IGNORECASE)


def _trains(evidence: Evidence) -> bool:
    """Whether losses of several steps are printed, and a list of cards shows what they hold meanwhile."""
    return any(d.used_bytes for d in evidence.devices) and sum(_LOSS.search(line.text) is not None for line in evidence.lines) >= 3


def measured(run: Run, evidence: Evidence) -> tuple[Verdict, str] | None:
    """The verdict of a run that ended by itself, or goes on with room to spare, and printed what it held.

    ``None`` where it did neither, or the card is not known.
    """
    ended = any(_FINISHED.search(line.text) for line in evidence.lines)
    if evidence.failure is not None or run.usable is None or not (ended or _steady(run, evidence) or _trains(evidence)):
        return None
    shown = max((s.device_used_bytes or 0 for s in evidence.samples), default=0)
    if _trains(evidence):
        shown = max(shown, max((d.used_bytes or 0 for d in evidence.devices), default=0))
    reserved = max((max(s.peak_reserved_bytes or 0, s.reserved_bytes or 0, s.peak_allocated_bytes or 0) for s in evidence.samples), default=0)
    held, usable = max(shown, reserved + CONTEXT_HIGH if reserved else 0), run.usable[0]
    if not held or held > usable:
        return None
    went = "ended by itself" if ended else "goes on"
    says = f"The run {went}, and by its own figures it held {show(max(shown, reserved))} at its peak, on a card with {show(usable)} usable."
    return ("fits" if held <= NARROW * usable else "tight"), says


def at_least(run: Run, evidence: Evidence) -> str | None:
    """What one card must hold for the model's state alone, whatever micro batch and length are; ``None`` where not even that can be told."""
    state = static_state.state_of(run, evidence) or static_state.of_size(run, parameters(run, evidence) or _said(evidence))
    if state is None or not state.bytes:
        return None
    parts = ", ".join(f"{WORDS[part]} {show(size)}" for part, size in sorted(state.parts.items(), key=lambda p: -p[1]))
    how = "" if _known(run, "method.kind") else " (if all weights are trained: adapters need far less)"
    beyond = ""
    if run.usable is not None and state.bytes > run.usable[0]:
        beyond = f" That alone is more than the {show(run.usable[0])} usable of the card."
    return f"At least {show(state.bytes)} on each card whatever batch and length are{how}: {parts}; activations come on top.{beyond}"


def _known(run: Run, path: str) -> bool:
    fact = run.facts.get(path)
    return fact is not None and fact.kind in ("stated", "read", "inferred")


_SAID = pattern(r"(?<![\w.])(\d{1,3}(?:\.\d{1,2})?) ?(?:B|b|billion)(?![A-Za-z])")


def _said(evidence: Evidence) -> int | None:
    """A model's size as people say it ("llama 3B", "a 7B model"), where nothing failed and the text is a question."""
    if evidence.failure is not None:
        return None
    found = next((m for line in evidence.lines[:50] if (m := _SAID.search(line.text)) is not None), None)
    return round(float(found.group(1)) * 1e9) if found is not None else None


def asks(evidence: Evidence) -> bool:
    """Whether a text without any other fact at least names a model's size: then it can be answered with a bound and a question."""
    return _said(evidence) is not None
