"""A report in six lines or fewer, for a chat."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.render import words
from advisor.render.changing import cost
from advisor.render.measured import Figure
from advisor.report import Report, Step
from advisor.units import show

LONGEST_LINE = 240
MOST_LINES = 6
LARGEST = "Largest:"


MOST_STEPS = 3


def _changes(steps: Sequence[Step]) -> list[str]:
    """A line for each step up to the one from which on it fits: half a plan is none. Of more than three, the third line has the rest."""
    fitting = next((n for n, step in enumerate(steps) if step.fits_after), None)
    needed = steps[:2] if fitting is None else steps[: fitting + 1]
    if len(needed) <= MOST_STEPS:
        return [f"Do: {_change(step)}" for step in needed]
    rest = needed[MOST_STEPS - 1 :]
    return [f"Do: {_change(step)}" for step in needed[: MOST_STEPS - 1]] + [f"Do: {'; '.join(step.title for step in rest)}, fits from here on"]


def _change(step: Step) -> str:
    after = f", {show(step.after_bytes)} after it" if step.after_bytes is not None else ""
    fits = ", fits from here on" if step.fits_after else ""
    speed = f", {cost(step.step_time_ratio)}" if step.step_time_ratio is not None else ""
    settings = next(iter(step.settings.values()), ())
    line = f": {' / '.join(settings)}" if settings else ""
    return f"{step.title}{after}{fits}{speed}{line}"


def report(report: Report, measured: Figure | None = None) -> str:
    """Verdict, what was measured, the largest parts, the first cause, the changes up to the one from which on it fits, the question."""
    lines = [f"{words.VERDICTS[report.verdict]}: {report.sentence}"]
    if measured is not None:
        lines.append(measured.sentence())
    if report.ledger is not None and report.ledger.peak().bytes:
        parts = sorted(report.ledger.by_part().items(), key=lambda kv: -kv[1])[:3]
        lines.append(f"{LARGEST} " + ", ".join(f"{words.part(p).lower()} {show(size)}" for p, size in parts))
    if report.findings:
        first = report.findings[0]
        lines.append(f"Why: {first.title} ({words.likely(first.confidence)})")
    changes = _changes(report.plan.steps)
    if len(lines) + len(changes) > MOST_LINES:
        lines = [line for line in lines if not line.startswith(LARGEST)]  # what is to be done goes before it
    lines += changes
    if report.next_question is not None:
        lines.append(f"Open: {report.next_question.text}")
    return "\n".join(" ".join(line.split())[:LONGEST_LINE] for line in lines[:MOST_LINES]) + "\n"
