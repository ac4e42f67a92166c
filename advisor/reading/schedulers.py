"""A job that a scheduler ended for a reason of its own: its time was over, it was preempted, its node failed. No memory ran out.

Read only of a text without another failure: beside one, such a line is that failure's counter-evidence or its consequence.

Sources: Slurm ``src/slurmd/slurmstepd/req.c`` (``*** JOB n ON node CANCELLED AT time DUE TO TIME LIMIT ***``, ``PREEMPTION``, ``NODE FAILURE``);
LSF ``TERM_RUNLIMIT: job killed after reaching LSF run time limit``; PBS ``=>> PBS: job killed: walltime n exceeded limit m``; Kubernetes'
``DeadlineExceeded``.
"""

from __future__ import annotations

from advisor.evidence import Failure
from advisor.reading.lines import Excerpt
from advisor.reading.pattern import pattern as lazily

_ENDED = lazily(
    r"CANCELLED AT \S{4,40} DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)|(TERM_RUNLIMIT): job killed|PBS: job killed: (walltime) \d+ exceeded|"
    r"\b(?:reason|Reason): (DeadlineExceeded)\b"
)


def ended_by_scheduler(text: Excerpt) -> list[Failure]:
    """The first such line, as a failure that is none of memory; empty where there is none."""
    for line in text.lines:
        if (found := _ENDED.search(line.text)) is not None:
            reason = next(group for group in found.groups() if group).lower()
            details = (("what", "scheduler"), ("reason", reason))
            return [Failure(kind="not-memory", where=text.where(line), text=line.text.strip()[:400], rank=line.rank, details=details)]
    return []
