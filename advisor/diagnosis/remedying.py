"""The cures of the most likely cause, where the planner could not estimate them: actions, or a job of which too little is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.job import JobError
from advisor.planner.stepping import lines, title
from advisor.report import Finding, Plan, Step
from advisor.rules.estimating import ledger_of
from advisor.run import Run
from advisor.techniques import TIERLESS, NotApplicable, all_techniques

FIRST_STEPS = 2  # a person reads the first two


def with_cures(plan: Plan, findings: Sequence[Finding], real: Run) -> Plan:
    """The plan with the top finding's remedies in front, where none of its first steps is one."""
    if not findings:
        return plan
    top = findings[0]
    if any(step.technique in top.remedies and _early(step, top) for step in plan.steps[:FIRST_STEPS]):
        return plan
    base = top.faulted if top.faulted is not None else real
    wanted = 1 if plan.steps else FIRST_STEPS
    cures = [step for step in (_step(name, top, base) for name in top.remedies) if step is not None][:wanted]
    if not cures:
        return plan
    later = tuple(step for step in plan.steps if step.technique not in {c.technique for c in cures})
    return replace(plan, steps=(*cures, *later))


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
        if not unknown:
            return None  # the run is known well enough to say that this does not apply
        changed = run
    before, after = ledger_of(run), ledger_of(changed)
    estimated = technique.estimated and before is not None and after is not None and changed is not run
    saved = f"It cures the most likely cause: {finding.title[0].lower()}{finding.title[1:]}."
    return Step(
        technique=name,
        title=title(name),
        tier=finding.tier if name in TIERLESS else technique.tier,
        estimated=estimated,
        before_bytes=before.peak().bytes if before is not None else None,
        after_bytes=after.peak().bytes if estimated and after is not None else None,
        step_time_ratio=None,
        exact=technique.exact,
        settings=lines(run.job, changed.job),
        why=saved,
        alters_learning=technique.alters_learning,
        run=changed,
    )
