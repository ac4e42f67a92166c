"""Questions about what was seen, where no setting would tell the causes apart: who ended the process, at which moment it fails."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.reading.serving import KEY as SERVES
from advisor.report import Finding, Question, Seen
from advisor.rules import host
from advisor.rules.observing import OBSERVATIONS
from advisor.run import Run

LIKELY = 0.5
MOMENTS = {
    "seen-load": ("load", "While the model is loaded or wrapped, before any step"),
    "seen-eval": ("eval", "In an evaluation or validation"),
    "seen-save": ("save", "While a checkpoint is saved"),
    "seen-resume": ("resume", "Right after resuming from a checkpoint"),
}  # mark of the evidence → (the phase that it settles, the words on the button)
STEPS = ("seen-first-step", "seen-later")


def settled(evidence: Evidence) -> Evidence:
    """The evidence with the moment that was answered put into the failure, where its text settles none."""
    failure = evidence.failure
    phase = next((MOMENTS[mark][0] for mark in evidence.marks if mark in MOMENTS), None)
    if failure is None or failure.phase is not None or phase is None:
        return evidence
    told = replace(failure, phase=phase, details=(*failure.details, ("phase_from", "your answer")))
    return replace(evidence, failures=tuple(told if f is failure else f for f in evidence.failures))


def question(findings: Sequence[Finding], run: Run, evidence: Evidence) -> Question | None:
    """The question that what was seen can answer; ``None`` where a setting is the better thing to ask for."""
    failure, top = evidence.failure, findings[0] if findings else None
    if failure is None:
        return None
    kind = host.shortage(evidence)
    if kind in ("killed", "gone"):
        if {"seen-oom-kill", "seen-no-oom-kill"} & set(evidence.marks):
            return None
        text = (
            "Does the kernel or the container say that it killed the process for want of memory? "
            "(dmesg -T | grep -i 'killed process', or oom_kill in /sys/fs/cgroup/memory.events)"
        )
        return Question("seen", text, 0, answers=tuple(Seen(m, OBSERVATIONS[m].says) for m in ("seen-oom-kill", "seen-no-oom-kill")))
    open_moment = failure.kind in ("gpu-memory", "gpu-driver") and failure.phase is None and not failure.frames
    if open_moment and "model.name" in run.missing and (top is None or top.confidence < LIKELY) and not set(evidence.marks) & {*MOMENTS, *STEPS}:
        answers = (*(Seen(m, says) for m, (_, says) in MOMENTS.items()), *(Seen(m, OBSERVATIONS[m].says) for m in STEPS))
        return Question("seen", "At which moment does it fail?", 0, answers=answers)
    return None


def serves(evidence: Evidence) -> bool:
    """Whether a server that did not start is all there is: nothing that is assumed of a training job is about it."""
    failure = evidence.failure
    return failure is not None and failure.kind == "engine-start" and any(key == SERVES for _, key, _ in evidence.seen_keys) and not _trains(evidence)


def _trains(evidence: Evidence) -> bool:
    return any(fact.field in ("framework.name", "batch.micro_batch", "objective", "method.kind") for fact in evidence.facts if fact.kind in ("read", "stated"))


def needless(findings: Sequence[Finding], evidence: Evidence) -> bool:
    """Whether no setting of the job would change the answer: the host's shared memory, an engine that runs without a trainer."""
    top = findings[0] if findings else None
    if top is None or top.confidence < LIKELY:
        return False
    failure = evidence.failure
    return host.shortage(evidence) == "shm" or (failure is not None and failure.kind == "engine-start" and bool(top.doing))
