"""What stays between the steps against what a step takes on top and gives back.

Logs that print ``memory_allocated`` beside ``max_memory_allocated`` show both. What stays is weights, optimizer state and perhaps
gradients; what is given back is activations, logits and buffers, and gradients where they are set to None: these are at most as
large as the weights. A step that takes more than twice what stays takes it for its batch.
"""

from __future__ import annotations

from advisor.evidence import Evidence, Sample
from advisor.rules import counters, growth
from advisor.rules.rule import Mark
from advisor.rules.situation import in_phase
from advisor.run import Run
from advisor.units import show

LEAST_STEPS = 2
TIMES = 2.0  # of what stays: gradients alone are less
CARD = 0.5  # of the card: less of it is no reason to fail
SOURCE = "torch.cuda.memory_allocated after a step against max_memory_allocated: Module parameters, gradients and states outlive it, saved tensors do not"


def transient(run: Run, evidence: Evidence) -> str | None:
    """The sentence where the batch takes most of the card, step by step, and nothing is kept."""
    failure = evidence.failure
    if failure is None or not in_phase(evidence, "forward", "loss", "backward", None) or growth.growing(evidence):
        return None
    rows = [(s, s.allocated_bytes, s.peak_allocated_bytes) for s in evidence.samples if s.step is not None]
    pairs = [(s, rest, peak) for s, rest, peak in rows if rest and peak and peak > rest and not _evaluates(s)]
    if len(pairs) < LEAST_STEPS:
        return None
    stays, least = max(rest for _, rest, _ in pairs), min(peak - rest for _, rest, peak in pairs)
    capacity = counters.of(evidence).capacity or (run.usable[0] if run.usable else None) or max(peak for _, _, peak in pairs)
    if least < TIMES * stays or least < CARD * capacity:
        return None
    return f"{show(stays)} stay between the steps; each takes at least {show(least)} more and gives it back ({pairs[-1][0].where})"


def _evaluates(sample: Sample) -> bool:
    return any(word in sample.label.lower() for word in ("val", "eval"))


def mark(cause: str, weight: float, says: str) -> Mark:
    """The mark of a cause that such a step speaks for (or against)."""
    return Mark(f"{cause}-transient", weight, says, SOURCE, when=transient)
