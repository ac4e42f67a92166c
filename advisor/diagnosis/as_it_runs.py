"""The run as it really is: the faults of the most likely causes put in."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.evidence import Evidence
from advisor.report import Finding
from advisor.rules.engine import all_rules
from advisor.run import Run

APPLIED_FROM = 0.35  # probability from which a fault is taken as how the job runs


def as_it_runs(run: Run, evidence: Evidence, findings: Sequence[Finding]) -> Run:
    """The run with the faults of causes that are likely enough; the run itself where no cause changes how it runs.

    Faults are applied one after the other, each to the run that the earlier ones left, so that they add up where they are independent.
    """
    rules = {rule.id: rule for rule in all_rules()}
    real = run
    for finding in findings:
        fault = rules[finding.cause].fault
        if finding.confidence >= APPLIED_FROM and finding.faulted is not None and fault is not None:
            real = fault(real, evidence) or real
    return real
