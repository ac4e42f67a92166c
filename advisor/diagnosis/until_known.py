"""What can be done at once where a failure names no cause: an error message alone, as most people paste it first.

Two changes make what one training step holds smaller whatever fills the card, and leave what is learned as it is; neither has a figure
here, and neither is said to cure anything. The summary says what would settle the cause.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.evidence import Evidence
from advisor.job import JobError
from advisor.planner.constraints import Constraints
from advisor.planner.stepping import changed_lines, title
from advisor.report import Plan, Step
from advisor.run import Run
from advisor.techniques import NotApplicable, all_techniques

ANYHOW = ("smaller-micro-batch", "gradient-checkpointing")  # both compute the same step in smaller pieces
IN_A_STEP = (None, "forward", "loss", "backward", "step")
WANTED = "The whole traceback together with the script or the config that was started would name the cause"
WATCHED = "so does `advisor.watch()` around the training loop"  # of PyTorch: what it watches are its operators
UNTIL = "Until then these steps make a training step smaller, whatever the cause is."
WHY = "It makes what a training step holds smaller; nothing read says that this is the cause."


def until_known(plan: Plan, run: Run, evidence: Evidence, allow: Constraints | None) -> Plan:
    """The plan with changes that help in any case, where a card ran out, no cause has evidence and nothing can be estimated."""
    failure = evidence.failure
    if failure is None or failure.kind not in ("gpu-memory", "gpu-driver") or failure.phase not in IN_A_STEP or plan.steps:
        return plan
    within, of_torch = allow or Constraints(), failure.backend not in ("jax", "tensorflow") and dict(failure.details).get("library") != "mlx"
    seen = f"{WANTED}; {WATCHED}. {UNTIL}" if of_torch else f"{WANTED}. {UNTIL}"
    steps = [step for step in (_step(name, run) for name in ANYHOW if within.permits(all_techniques()[name])) if step is not None]
    return replace(plan, steps=tuple(steps), summary=f"{plan.summary} {seen}") if steps and within.within(len(steps)) else plan


def _step(name: str, run: Run) -> Step | None:
    technique = all_techniques()[name]
    try:
        changed = technique.apply(run)
    except JobError:
        return None
    if isinstance(changed, NotApplicable):
        if changed.settled:
            return None
        changed = run
    return Step(
        technique=name,
        title=title(name),
        tier=technique.tier,
        estimated=False,
        before_bytes=None,
        after_bytes=None,
        step_time_ratio=None,
        exact=technique.exact,
        settings=changed_lines(run, changed, name),
        why=WHY,
        alters_learning=technique.alters_learning,
        run=changed,
    )
