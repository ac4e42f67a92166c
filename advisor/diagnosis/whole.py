"""The stations of a diagnosis, one after the other. Each is a function of those above it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from advisor.architecture.keys import ConfigError
from advisor.diagnosis import deciding, following, inconsistent, question, saving
from advisor.diagnosis.as_it_failed import older_defaults
from advisor.diagnosis.as_it_runs import as_it_runs
from advisor.diagnosis.outcome import outcome, relevant
from advisor.diagnosis.phase import phase_of
from advisor.diagnosis.remedying import said_why, with_cures
from advisor.diagnosis.until_known import until_known
from advisor.evidence import Evidence, Fact
from advisor.faults import Contained
from advisor.job import Job
from advisor.report import Finding, Plan, Question, Report
from advisor.resolving.contradictions import contradictions
from advisor.rules import engine, fingerprint, remainder
from advisor.rules.estimating import ledger_of
from advisor.run import Run, resolve
from advisor.techniques import all_techniques

if TYPE_CHECKING:
    from advisor.planner.constraints import Constraints
    from advisor.reading import Reading

PLANNED_FROM = 0.15  # probability from which a cause takes part in the plan


def diagnose(items: Sequence[tuple[str, bytes | str | Path]], *, margin_bytes: int | None = None) -> Report:
    """What happened, why, what to change first: from named texts or files, in any order.

    ``margin_bytes``: room that the plan leaves below the card's usable memory; ``None``: the estimate's own uncertainty.
    """
    from advisor.reading import read

    return diagnose_reading(read(items), margin_bytes=margin_bytes)


def diagnose_reading(reading: Reading, *, margin_bytes: int | None = None, allow: Constraints | None = None) -> Report:
    """The report of what was read; ``allow``: what its plan may do."""
    evidence = deciding.settled(reading.evidence)
    run, notes = _resolved(reading.job, evidence)
    judgement = engine.judge(run, evidence)
    real = as_it_runs(run, evidence, judgement.findings)
    ledger, written = ledger_of(real), ledger_of(run)
    asked = _asked(judgement.findings, run, evidence)
    verdict, sentence = outcome(run, real, evidence, judgement, asked)
    findings, cleared = relevant(judgement, run, evidence, verdict)
    findings = saving.with_savings(findings, real)
    failure = evidence.failure
    usable = real.usable
    return Report(
        verdict=verdict,
        sentence=sentence,
        phase=phase_of(evidence, real, findings[0] if findings else None),
        rank=failure.rank if failure is not None else None,
        findings=findings,
        plan=_plan(real, findings, verdict, evidence, margin_bytes, allow),
        next_question=asked if verdict not in ("unreadable", "not-memory") else None,
        cleared=cleared,
        not_applicable=judgement.not_applicable,
        could_not_tell=judgement.could_not_tell,
        run=real,
        ledger=ledger,
        as_written=written if real is not run else None,
        evidence=evidence,
        assumed=() if deciding.serves(evidence) or verdict == "not-memory" else tuple(f for f in run.facts.values() if f.kind in ("assumed", "inferred")),
        read=tuple(f for f in run.facts.values() if f.kind in ("read", "stated")),
        conflicts=evidence.conflicts,
        not_understood=evidence.not_understood,
        notes=(*notes, *contradictions(run), *inconsistent.notes(run, evidence), *_remainder(run, evidence)),
        follow_ups=following.follow_ups(findings, run, evidence) if verdict not in ("unreadable", "not-memory") else (),
        sources=evidence.sources,
        capacity_bytes=usable[0] if usable is not None else (failure.capacity_bytes if failure is not None else None),
        capacity_why=usable[1] if usable is not None else ("the capacity that the error prints" if failure is not None and failure.capacity_bytes else None),
    )


def replanned(report: Report, *, margin_bytes: int | None = None, allow: Constraints | None = None) -> Report:
    """The same report with its plan made anew, within what it may do."""
    if report.run is None:
        return report
    return replace(report, plan=_plan(report.run, report.findings, report.verdict, report.evidence, margin_bytes, allow))


def _asked(findings: Sequence[Finding], run: Run, evidence: Evidence) -> Question | None:
    if deciding.needless(findings, evidence):
        return None
    return deciding.question(findings, run, evidence) or question.next_question(run, evidence)


def _remainder(run: Run, evidence: Evidence) -> tuple[str, ...]:
    found = remainder.matching(run, evidence)
    return (f"As written the job does not explain the counters: {found}.",) if found else ()


def _resolved(job: Job, evidence: Evidence) -> tuple[Run, tuple[str, ...]]:
    """The run of what was read. A model's config that cannot be used is left out, and the note says why."""
    # Facts below a section's own fields (framework.versions.torch) are in the job already; resolving settles two levels.
    settled = replace(evidence, facts=tuple(f for f in evidence.facts if f.field.count(".") < 2))
    try:
        return _with_implied(*older_defaults(*_with_shown(_judgeable(resolve(job, settled)), job, settled))), ()
    except ConfigError as error:
        bare = job.but(model={"config": None})
        settled = replace(settled, facts=tuple(f for f in settled.facts if f.field != "model.config"))
        return resolve(bare, settled), (f"The model's config was not used: {error}",)


def _with_shown(run: Run, job: Job, evidence: Evidence) -> tuple[Run, Job, Evidence]:
    """The run with whole logits, where a traceback shows them being made and only a default of some version says that they are not."""
    fact = fingerprint.shown_loss(run, evidence)
    if fact is None:
        return run, job, evidence
    job, evidence = job.but(activations={"loss": fact.value}), evidence.with_facts((fact,))
    return resolve(job, evidence), job, evidence


def _with_implied(run: Run, job: Job, evidence: Evidence) -> Run:
    """The run with a sequence length that the failed request or the longest sample implies, where none was read."""
    fact = fingerprint.implied_length(run, evidence) or _of_longest(run)
    return run if fact is None else resolve(job.but(batch={"seq_len": fact.value}), evidence.with_facts((fact,)))


def _of_longest(run: Run) -> Fact | None:
    """A batch is as long as its longest sample where nothing cuts it."""
    spread = run.job.batch.lengths
    if spread is None or spread.max is None or run.job.batch.seq_len is not None:
        return None
    return Fact("batch.seq_len", spread.max, "inferred", why="the longest sample that is told, and no cut-off was read")


def _judgeable(run: Run) -> Run:
    """The run, with its model's shape read: what is wrong with a config shows here and not in the middle of a rule."""
    _ = run.architecture
    return run


def _plan(run: Run, findings: Sequence[Finding], verdict: str, evidence: Evidence, margin_bytes: int | None, allow: Constraints | None) -> Plan:
    if verdict in ("unreadable", "not-memory"):
        return Plan(summary="There is no memory to plan for.")
    from advisor.planning import plan

    findings = findings if allow is None else _allowed(findings, allow)
    causes = [f for f in findings if f.confidence >= PLANNED_FROM] or list(findings[:1])
    with Contained() as fault:
        made = plan(run, causes=causes, margin_bytes=margin_bytes, evidence=evidence, allow=allow)
        if evidence.failure is None and made.steps:
            return made
        if not findings:
            return until_known(made, run, evidence, allow)
        cured = with_cures(made, findings, run) if findings[0].remedies else made
        within = allow is None or allow.within(len(cured.steps))
        return said_why(cured if within else made, findings, run)
    return Plan(summary=f"No plan was made: {fault.said}")


def _allowed(findings: Sequence[Finding], allow: Constraints) -> tuple[Finding, ...]:
    """The causes without the remedies that the plan may not take."""
    known = all_techniques()
    return tuple(replace(f, remedies=tuple(r for r in f.remedies if r not in known or allow.permits(known[r]))) for f in findings)
