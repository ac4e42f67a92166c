"""The verdict and its sentence, and which findings belong to it."""

from __future__ import annotations

from typing import Any

from advisor import verdict as fitting
from advisor.diagnosis import bounds, question
from advisor.diagnosis.phase import phase_of
from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Finding, Question, Verdict
from advisor.rules import counters, host
from advisor.rules.engine import Judgement
from advisor.rules.estimating import ledger_of
from advisor.rules.shard.communication_buffers import ENDED, WAITED
from advisor.run import Run
from advisor.units import show

SURE, LIKELY = 0.8, 0.5
MEMORY_KINDS = frozenset({"gpu-memory", "gpu-driver", "host-memory", "collective", "engine-start"})
# aten CublasHandlePool.cpp, cudnn/Handle.cpp: handles and workspaces that a library allocates at its first call
LIBRARIES = {"cublas": "cuBLAS's handle or workspace", "cudnn": "cuDNN's handle or workspace", "cusolver": "the solver's handle or workspace"}
IN_PHASE = {
    "load": "while loading", "rollout": "while generating", "sync": "at the hand-over of weights", "forward": "in the forward pass",
    "loss": "at the loss", "backward": "in the backward pass", "step": "in the optimizer's step", "eval": "in evaluation",
    "save": "while saving", "resume": "while resuming", "merge": "while merging",
}  # fmt: skip


def outcome(run: Run, real: Run, evidence: Evidence, judgement: Judgement, asked: Question | None) -> tuple[Verdict, str]:
    """The verdict in the contract's words, and one sentence."""
    top = judgement.findings[0] if judgement.findings else None
    failure = evidence.failure
    if failure is not None:
        if top is not None and top.cause == "not-memory" and top.confidence >= LIKELY:
            return "not-memory", f"{top.title}: {top.evidence[0].says}."
        if failure.kind == "collective" and dict(failure.details).get("what") in WAITED and (top is None or top.confidence < LIKELY):
            return "not-memory", "A rank waited for another one in vain, and nothing shows that memory ran out: the first rank's own error is what counts."
        if failure.kind == "collective" and dict(failure.details).get("what") in ENDED and (top is None or top.confidence < LIKELY):
            who = "A notebook says that its kernel" if dict(failure.details).get("what") == "kernel died" else "A launcher says that a process"
            return "incomplete", f"{who} ended, which is no memory error by itself: what that process printed before decides. Add it."
        if host.shortage(evidence) == "gone":
            if "seen-no-oom-kill" in evidence.marks:
                return "not-memory", "A worker of the data loader ended, and the kernel killed none: with num_workers=0 it prints its own error."
            return "incomplete", _ask(asked, "a worker of the data loader ended, and the host's memory, /dev/shm or an error of its own may be why")
        if failure.kind in MEMORY_KINDS:
            return "ooms", _failed(evidence, top, phase_of(evidence, real, top))
        return "not-memory", "The text reports a failure, and it is not one of memory."
    if top is not None and top.cause == "not-memory" and top.confidence >= LIKELY and _told_by_text(top):
        return "not-memory", f"{top.title}: {top.evidence[0].says}."
    if _nothing_read(run, evidence, judgement) and not bounds.asks(evidence):
        return "unreadable", _unreadable(evidence)
    if (ended := bounds.measured(run, evidence)) is not None and (run.missing or ledger_of(run) is None):
        return ended
    if run.missing or ledger_of(run) is None:
        least = bounds.at_least(run, evidence)
        why = f"what decides is missing: {', '.join(run.missing) or 'the model'}"
        return "incomplete", f"{least} {_ask(asked, why)}" if least else _ask(asked, why)
    if found := list(question.deciding(run)):
        return "incomplete", _ask(asked, f"whether it fits depends on what was only assumed: {', '.join(_each(path, peaks) for path, peaks in found)}")
    ledger = ledger_of(real)
    if ledger is None:
        return "incomplete", _ask(asked, "the run as it really is cannot be estimated")
    return fitting.judge(real, ledger)


def relevant(judgement: Judgement, _run: Run, evidence: Evidence, verdict: Verdict) -> tuple[tuple[Finding, ...], tuple[tuple[str, str], ...]]:
    """The findings that belong to a verdict, and what was looked for and is not there.

    Without a failure, a part that merely is large is no cause: a fitting run keeps only findings that a text speaks for, an incomplete
    one keeps none that rest on assumed sizes.
    """
    findings, cleared = judgement.findings, judgement.cleared
    if verdict == "unreadable":
        return (), ()
    if verdict == "not-memory":  # what would weigh on a memory failure says nothing about this one
        return tuple(f for f in findings if f.cause == "not-memory"), cleared
    if evidence.failure is None and verdict != "ooms":
        kept = tuple(f for f in findings if f.tier == "spare" or _told_by_text(f))
        kept = tuple(f for f in kept if f.tier != "hardware")
        return kept, cleared
    return findings, cleared


def _told_by_text(finding: Finding) -> bool:
    return any(s.speaks_for and not _of_shares(s.mark) for s in finding.evidence)


def _of_shares(mark: str) -> bool:
    return "-share-" in mark or mark.endswith(("-numbers", "-estimate"))


_NO_NAME = pattern(r"[\[\]{}'\"();|<>]")  # in no id of a hub and no path that a loader takes: what a list or a tag of a config was


def _nothing_read(run: Run, evidence: Evidence, judgement: Judgement) -> bool:
    if any(_told_by_text(f) for f in judgement.findings):
        return False
    known = [f for f in run.facts.values() if f.kind in ("read", "stated") and not (f.field == "model.name" and _NO_NAME.search(str(f.value)))]
    return not known and not evidence.samples and not evidence.devices and not evidence.marks


def _unreadable(evidence: Evidence) -> str:
    names = ", ".join(f"{s.name} ({s.kind}{': ' + s.note if s.note else ''})" for s in evidence.sources[:4])
    read = f"Read: {names}. " if names else "Nothing was given. "
    return f"{read}No error text, setting, model or card was recognised; paste the error with its traceback, or the config that was started."


def _each(path: str, peaks: dict[Any, int]) -> str:
    """A field with what the job needs for each of its values."""
    low, high = min(peaks, key=lambda value: peaks[value]), max(peaks, key=lambda value: peaks[value])
    return f"{path} ({show(peaks[low])} with {low}, {show(peaks[high])} with {high})"


def _ask(asked: Question | None, why: str) -> str:
    return f"{why[0].upper()}{why[1:]}." + (f" {asked.text}" if asked is not None else "")


def _moment(read: str | None, implied: str) -> str:
    """When it failed: as the text shows it, else as sizes or the cause imply it, and then no more than most likely."""
    if read in IN_PHASE:
        return IN_PHASE[read]
    return f"most likely {IN_PHASE[implied]}" if implied in IN_PHASE else "at a moment that the text does not settle"


def _failed(evidence: Evidence, top: Finding | None, phase: str) -> str:
    failure, figures = evidence.failure, counters.of(evidence)
    if failure is None:
        return ""
    moment = _moment(failure.phase, phase)
    kind = host.shortage(evidence)
    if kind == "killed":
        sure = "" if top is None or top.confidence < LIKELY else " Most often that is the host's memory."
        return f"A process was ended by signal 9 {moment}, which does not say why.{sure}"
    what = {"shm": "shared memory (/dev/shm)", "said": "the host's memory"}.get(kind or "", "memory")
    if failure.kind == "engine-start":
        what = "its share of the card as the inference engine came up"
    library = LIBRARIES.get(str(dict(failure.details).get("driver")))
    size = f" with {show(figures.allocated)} of {show(figures.capacity)} allocated" if figures.allocated and figures.capacity else ""
    sentence = f"It ran out of {what}{'' if failure.kind == 'engine-start' or (kind == 'shm' and failure.phase is None) else f' {moment}'}{size}"
    if library is not None and figures.allocated is None:
        sentence = f"The driver had no memory left for {library} {moment}: some MB outside PyTorch's allocator, so the card was full before"
    if top is None:
        return f"{sentence}; none of the known causes has evidence here."
    sure = "surely" if top.confidence >= SURE else "most likely" if top.confidence >= LIKELY else "perhaps"
    return f"{sentence}; {sure}: {top.title[0].lower()}{top.title[1:]}."
