"""Whether what a run holds follows from what its card has left, so that a larger card would hold more for the same job."""

from __future__ import annotations

from advisor.job import Job


def counted(job: Job) -> bool:
    """A rollout engine's cache is a share of the card (:mod:`advisor.arithmetic.rollout`), and so are the chunks of Unsloth's loss
    (:mod:`advisor.arithmetic.unsloth_loss`). Of any other job the card's memory bounds the allocator's cache alone."""
    return job.rollout is not None or job.framework.name == "unsloth"
