"""The time of a step: a first version from FLOPs and bytes moved."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.run import Run


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, with its range and parts. ``relative``: the card is unknown, so only ratios mean something."""

    low: float
    expected: float
    high: float
    compute: float
    memory: float
    communication: float
    host: float
    tokens: float  # of the whole job, a step
    relative: bool = False

    @property
    def seconds_per_token(self) -> float:
        """Seconds a token of the whole job."""
        return self.expected / max(self.tokens, 1.0)


def step_time(run: Run) -> StepTime:
    """Seconds of one optimizer step."""
    job = run.effective
    a = run.architecture
    params = a.active_parameters if a is not None else 1e9
    p = job.parallel
    tokens = float((job.batch.micro_batch or 1) * (job.batch.seq_len or 1) * (job.batch.gradient_accumulation or 1))
    factor = 8 if job.activations.checkpointing == "full" else 6
    rate = (run.card.flops.get("bf16") if run.card is not None else None) or 1e14
    seconds = factor * params * tokens / rate / 0.5
    world = max(1, (p.shard or 1) * (p.replicate or 1) // (p.context or 1))
    return StepTime(seconds * 0.8, seconds, seconds * 1.3, seconds, 0.0, 0.0, 0.0, tokens * world, run.card is None)
