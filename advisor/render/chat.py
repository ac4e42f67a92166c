"""A report in six lines or fewer, for a chat."""

from __future__ import annotations

from advisor.render import words
from advisor.render.changing import cost
from advisor.render.measured import Figure
from advisor.report import Report
from advisor.units import show

LONGEST_LINE = 240


def report(report: Report, measured: Figure | None = None) -> str:
    """Verdict, what was measured, the largest parts, the first cause, the first two changes, the question."""
    lines = [f"{words.VERDICTS[report.verdict]}: {report.sentence}"]
    if measured is not None:
        lines.append(measured.sentence())
    if report.ledger is not None and report.ledger.peak().bytes:
        parts = sorted(report.ledger.by_part().items(), key=lambda kv: -kv[1])[:3]
        lines.append("Largest: " + ", ".join(f"{words.part(p).lower()} {show(size)}" for p, size in parts))
    if report.findings:
        first = report.findings[0]
        lines.append(f"Why: {first.title} ({words.likely(first.confidence)})")
    for step in report.plan.steps[:2]:
        after = f", {show(step.after_bytes)} after it" if step.after_bytes is not None else ""
        speed = f", {cost(step.step_time_ratio)}" if step.step_time_ratio is not None else ""
        settings = next(iter(step.settings.values()), ())
        line = f": {' / '.join(settings)}" if settings else ""
        lines.append(f"Do: {step.title}{after}{speed}{line}")
    if report.next_question is not None:
        lines.append(f"Open: {report.next_question.text}")
    return "\n".join(" ".join(line.split())[:LONGEST_LINE] for line in lines[:6]) + "\n"
