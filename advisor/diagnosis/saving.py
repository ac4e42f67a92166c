"""What each finding costs: the peak of the run as it is, less the peak after the finding's first remedy that can be applied."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.job import JobError
from advisor.report import Finding
from advisor.rules.estimating import ledger_of
from advisor.run import Run

TRIED = 3  # remedies tried for one finding
JUDGED = 6  # findings for which savings are estimated


def with_savings(findings: Sequence[Finding], real: Run) -> tuple[Finding, ...]:
    """The findings with ``saves_bytes``: of the first remedy that lowers the peak; 0 or less where none of those tried does."""
    return tuple(replace(f, saves_bytes=_saves(f, real)) if number < JUDGED else f for number, f in enumerate(findings))


def _saves(finding: Finding, real: Run) -> int | None:
    from advisor.techniques import NotApplicable, all_techniques

    techniques = all_techniques()
    base = finding.faulted if finding.faulted is not None else real
    before = ledger_of(base)
    if before is None:
        return None
    least: int | None = None
    for name in finding.remedies[:TRIED]:
        technique = techniques.get(name)
        if technique is None or not technique.estimated:
            continue
        try:
            changed = technique.apply(base)
        except JobError:
            continue
        if isinstance(changed, NotApplicable):
            continue
        after = ledger_of(changed)
        if after is not None:
            saved = before.peak().bytes - after.peak().bytes
            if saved > 0:
                return saved
            least = saved if least is None else max(least, saved)
    return least
