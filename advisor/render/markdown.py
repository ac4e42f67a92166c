"""A report as Markdown, for an issue or a wiki."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.render import changing, words
from advisor.render.fewer import sentences
from advisor.render.measured import Figure
from advisor.render.quoted import quoted
from advisor.render.width import explained
from advisor.report import Finding, Report, Step
from advisor.units import show


def report(report: Report, measured: Figure | None = None) -> str:
    """The whole diagnosis; with what was measured of the run, where something was."""
    blocks = [
        f"## {words.VERDICTS[report.verdict]}",
        escape(report.sentence),
        escape(measured.sentence()) if measured is not None else "",
        escape(quoted(report.evidence.failure, report.ledger) or ""),
        *_peak(report),
        *_causes(report),
        *_plan(report),
        *_question(report),
        *_disagreements(report),
        *_facts(report),
        *_others(report),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escape(text: str) -> str:
    """Text from a log, with the letters that Markdown would read as marks written as themselves."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _peak(report: Report) -> Iterator[str]:
    ledger = report.ledger
    if ledger is None or not ledger.peak().bytes:
        return
    peak = ledger.peak()
    parts = sorted({**ledger.by_part(), "context": ledger.outside("context")}.items(), key=lambda kv: -kv[1])
    cache = ledger.outside("allocator")
    yield f"### The peak, {words.moment(peak.phase)} ({ledger.kind})"
    rows = "\n".join(f"| {words.part(p)} | {show(size)} |" for p, size in parts if size)
    spare = f"\n| {words.part('allocator')}, which gives way | {show(cache)} |" if cache else ""
    total = sum(size for _, size in parts)
    limit = f"\n| Usable on the card | {show(report.capacity_bytes)} |" if report.capacity_bytes is not None else ""
    yield f"| Part | Size |\n| --- | ---: |\n{rows}\n| **Needed together** | **{show(total)}** |{spare}{limit}"
    if (said := explained(report.run, ledger)) is not None:
        yield escape(said)


def _causes(report: Report) -> Iterator[str]:
    if report.findings:
        yield f"### {words.why_heading(report.verdict)}"
        yield "\n".join(_cause(number, finding) for number, finding in enumerate(report.findings[:5], 1))


def _cause(number: int, finding: Finding) -> str:
    effect = words.remedy(finding.saves_bytes)
    saves = f", {effect}" if effect else ""
    lines = [f"{number}. **{escape(finding.title)}** (`{finding.cause}`, {words.likely(finding.confidence)}{saves})"]
    for says in words.distinct(finding.evidence)[:5]:
        where = f" ({escape(says.where)})" if says.where else ""
        lines.append(f"   - {'for' if says.speaks_for else 'against'}: {escape(says.says)}{where}")
    return "\n".join(lines)


def _plan(report: Report) -> Iterator[str]:
    plan = report.plan
    if not plan.steps and not plan.summary:
        return
    yield f"### {words.plan_heading(report.verdict)}"
    if plan.summary:
        yield escape(plan.summary)
    for number, step in enumerate(plan.steps, 1):
        yield _step(number, step)
    if plan.irreducible:
        yield escape(plan.irreducible)
    if plan.runner_up:
        yield "Or: " + ", then ".join(escape(s.title) for s in plan.runner_up)
    for said in sentences(plan):
        yield escape(said)


def _step(number: int, step: Step) -> str:
    facts = "; ".join(filter(None, (changing.sizes(step), *changing.effects(step))))
    lines = [f"{number}. **{escape(step.title)}** (`{step.technique}`): {facts}"]
    if step.why:
        lines.append(f"   {escape(step.why)}")
    for framework, settings in step.settings.items():
        code = "\n".join(f"   {line}" for text in settings for line in text.splitlines())
        lines.append(f"\n   {escape(changing.place(framework))}:\n\n   ```\n{code}\n   ```")
    return "\n".join(lines)


def _question(report: Report) -> Iterator[str]:
    if report.next_question is not None:
        field = "" if report.next_question.answers else f" (`{report.next_question.field}`)"
        yield f"### What would help most to know\n\n{escape(report.next_question.text)}{field}"


def _disagreements(report: Report) -> Iterator[str]:
    if differing := words.disagreements(report):
        yield "### What does not agree\n\n" + "\n".join(f"- {escape(sentence)}" for sentence in differing)


def _facts(report: Report) -> Iterator[str]:
    for heading, facts in (("What was read", report.read), ("What was assumed", report.assumed)):
        if facts:
            rows = "\n".join(f"| `{f.field}` | {escape(words.value(f.value))} | {escape(words.origin(f))} |" for f in facts)
            yield f"<details><summary>{heading} ({len(facts)})</summary>\n\n| Field | Value | From |\n| --- | --- | --- |\n{rows}\n\n</details>"


def _others(report: Report) -> Iterator[str]:
    listed = [f"- {escape(words.title('causes', c.cause))}: could not tell, {escape(c.needs)}" for c in report.could_not_tell]
    if listed:
        yield f"<details><summary>Could not tell ({len(listed)})</summary>\n\n" + "\n".join(listed) + "\n\n</details>"
    yield "Estimated by the training memory advisor; an estimate may differ from the device."
