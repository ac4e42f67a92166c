"""The cures of the most likely cause, where the planner could not estimate them: actions, or a job of which too little is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from advisor.deviation import extra
from advisor.job import JobError
from advisor.planner.stepping import changed_lines, title
from advisor.report import Finding, Plan, Step
from advisor.rules.estimating import ledger_of
from advisor.run import Run
from advisor.techniques import TIERLESS, NotApplicable, all_techniques

FIRST_STEPS = 2  # a person reads the first two
BEYOND = "These steps are about something that no estimate of the training job covers."
OTHERWISE = "Or this in its place, not on top of it."
SAID_FROM = 0.5  # of the cause's probability
CLEARLY, TIMES_SECOND = 0.5, 2.0  # a cause is clearly the first: its probability, and how often that of the second


def with_cures(plan: Plan, findings: Sequence[Finding], real: Run) -> Plan:
    """The plan with the top finding's remedies in front, where none of its first steps is one.

    A cause that is clearly the first keeps its own remedy in the first place even where no estimate shows what it saves: figures of
    lesser causes do not make them likelier.
    """
    if not findings:
        return plan
    top = findings[0]
    if told := [_told(name, top, real) for name in top.remedies if name in top.doing][:FIRST_STEPS]:
        later = () if top.confidence >= CLEARLY else tuple(step for step in plan.steps if step.technique not in {s.technique for s in told})
        return replace(plan, steps=(*told, *later), summary=plan.summary if later else BEYOND)
    if plan.steps and _clearly_first(findings) and (own := _own(top, real)) is not None and plan.steps[0].technique != own.technique:
        return replace(plan, steps=(own, *(step for step in plan.steps if step.technique != own.technique)))
    if any(step.technique in top.remedies and _early(step, top) for step in plan.steps[:FIRST_STEPS]):
        return plan
    if top.tier == "hardware" and plan.fits and plan.steps:
        return plan  # what is bought never comes before changes that make it fit
    base = top.faulted if top.faulted is not None else real
    cures = [step for step in (_step(name, top, base) for name in top.remedies) if step is not None and not _adds(step)]
    if not cures:
        return plan
    if not plan.steps:
        return replace(plan, steps=(cures[0], *(replace(step, why=f"{OTHERWISE} {step.why}") for step in cures[1:FIRST_STEPS])))
    # The plan's own steps are estimated from the run as it is, and the cure is not one of them: it has no figure, so that theirs go on from each other.
    first = replace(cures[0], estimated=False, before_bytes=None, after_bytes=None)
    return replace(plan, steps=(first, *(step for step in plan.steps if step.technique != first.technique)))


def said_why(plan: Plan, findings: Sequence[Finding], real: Run) -> Plan:
    """The plan that says why the likely cause's own remedies are no steps of it: a plan that passes them over in silence looks like an error."""
    top = findings[0] if findings else None
    if top is None or top.tier == "hardware" or top.confidence < SAID_FROM or not plan.steps or any(step.technique in top.remedies for step in plan.steps):
        return plan
    why = []
    for name in top.remedies:
        technique = all_techniques().get(name)
        try:
            changed = technique.apply(real) if technique is not None else None
        except JobError:
            continue
        if isinstance(changed, NotApplicable):
            why.append(f"{title(name)}: {changed.reason}")
        if len(why) == FIRST_STEPS:
            break
    said = f" Not the cause's own remedies, because they do not apply. {'. '.join(why)}." if why else ""
    return replace(plan, summary=f"{plan.summary}{said}")


def _adds(step: Step) -> bool:
    return step.estimated and step.before_bytes is not None and step.after_bytes is not None and step.after_bytes > step.before_bytes


def _told(name: str, finding: Finding, run: Run) -> Step:
    """A remedy in the form that the finding gives it: an action, of which nothing is estimated."""
    doing, ledger = finding.doing[name], ledger_of(run)
    before = ledger.peak().bytes if ledger is not None else None
    tier = finding.tier if name in TIERLESS else all_techniques()[name].tier
    return Step(name, doing.title, tier, False, before, None, None, all_techniques()[name].exact, doing.lines, doing.why, run=run)


def _clearly_first(findings: Sequence[Finding]) -> bool:
    second = findings[1].confidence if len(findings) > 1 else 0.0
    return findings[0].confidence >= CLEARLY and findings[0].confidence >= TIMES_SECOND * second


def _own(top: Finding, real: Run) -> Step | None:
    """The first remedy where it is an action without an estimate, or answers a fault of which only the text tells, not its size."""
    name = top.remedies[0]
    technique = all_techniques().get(name)
    if technique is None or top.faulted is not None:
        return None  # the planner puts what cures a fault of known size in front by itself
    if not technique.estimated:
        return _step(name, top, real)
    try:
        if not isinstance(technique.apply(real), NotApplicable):
            return None
        told = real.deviating(extra("other", bytes=0, cause=top.cause))  # the run with the fault in it, of unknown size
        if isinstance(technique.apply(told), NotApplicable):
            return None
    except JobError:
        return None
    step = _step(name, top, told)
    return None if step is None else replace(step, estimated=False, after_bytes=None)


def _early(step: Step, top: Finding) -> bool:
    """Whether a step answers the top finding: where the job is too large for its cards, only what is named first does."""
    return top.tier != "hardware" or step.technique in top.remedies[:FIRST_STEPS]


def _step(name: str, finding: Finding, run: Run) -> Step | None:
    technique = all_techniques().get(name)
    if technique is None:
        return None
    try:
        changed = technique.apply(run)
    except JobError:
        return None
    unknown = bool(run.missing) or ledger_of(run) is None
    if isinstance(changed, NotApplicable):
        if not unknown or changed.settled:
            return None  # what is known of the run is enough to say that this does not apply
        changed = run
    before, after = ledger_of(run), ledger_of(changed)
    estimated = technique.estimated and before is not None and after is not None and changed is not run
    saved = f"It answers the most likely cause: {finding.title[0].lower()}{finding.title[1:]}."
    return Step(
        technique=name,
        title=title(name),
        tier=finding.tier if name in TIERLESS else technique.tier,
        estimated=estimated,
        before_bytes=before.peak().bytes if before is not None else None,
        after_bytes=after.peak().bytes if estimated and after is not None else None,
        step_time_ratio=None,
        exact=technique.exact,
        settings=changed_lines(run, changed, name) or _lines_from_wide(run, name),
        why=saved,
        alters_learning=technique.alters_learning,
        run=changed,
    )


def _lines_from_wide(run: Run, name: str) -> Mapping[str, tuple[str, ...]]:
    """The lines that load in 16 bits, where the job is taken as 16 bit already and only the failure shows that it is not."""
    if name != "load-in-16-bit":
        return {}
    try:
        return changed_lines(run.but(precision={"weights": "fp32"}), run, name)
    except JobError:
        return {}
