"""A report as terminal text that a tired person can read: the verdict, the peak against the card, causes, plan, what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.evidence import Fact
from advisor.ledger import Ledger, explain
from advisor.render import changing, words
from advisor.render.paper import Paper
from advisor.render.quoted import quoted
from advisor.report import Finding, Plan, Report, Step
from advisor.resolving.contradictions import contradictions
from advisor.run import Run
from advisor.units import show

_COLOURS = {"fits": "green", "tight": "yellow", "ooms": "red", "not-memory": "yellow", "incomplete": "yellow", "unreadable": "red"}
CAUSES_SHOWN = 3
ASSUMED_SHOWN = 8


def report(report: Report, paper: Paper) -> str:
    """The whole diagnosis."""
    _verdict(paper, report.verdict, report.sentence)
    if report.verdict == "unreadable":
        _not_understood(paper, report, limit=5)
        return paper.text()
    if (said := quoted(report.evidence.failure, report.ledger)) is not None:
        paper.say(f"The error says: {said}")
    if report.ledger is not None:
        _peak(paper, report.ledger, report.capacity_bytes, report.capacity_why)
        _width(paper, report.run, report.ledger)
    _causes(paper, report.findings, report.verdict)
    plan(report.plan, paper, report.verdict)
    if report.next_question is not None:
        paper.heading("What would help most to know")
        moves = f" (moves the estimate by {show(report.next_question.moves_bytes)})" if report.next_question.moves_bytes else ""
        paper.say(f"{report.next_question.text}{moves}", indent=2)
        for answer in report.next_question.answers:
            paper.say(f"--seen {answer.mark}: {answer.says}", "dim", indent=2)
        if not report.next_question.answers:
            paper.say(f"Answer with --set {report.next_question.field}=...", "dim", indent=2)
    if differing := words.disagreements(report):
        paper.heading("What does not agree")
        for sentence in differing:
            paper.say(sentence, indent=2, hang=4)
    _assumed(paper, report.assumed)
    _not_understood(paper, report, limit=3)
    _rest(paper, report)
    return paper.text()


def estimate(run: Run, ledger: Ledger | None, verdict: str, sentence: str, paper: Paper, *, part: str | None = None, phase: str | None = None) -> str:
    """A ledger: the peak, its parts, the phases; ``part`` opens the formulas of one part, ``phase`` looks at another moment."""
    _verdict(paper, verdict, sentence)
    if ledger is None:
        _missing(paper, run)
        return paper.text()
    usable = run.usable
    _peak(paper, ledger, usable[0] if usable else None, usable[1] if usable else None, phase)
    _width(paper, run, ledger)
    if part is not None:
        _formulas(paper, ledger, part, phase)
    else:
        paper.heading("Largest moment of each phase")
        phases = ledger.phases()
        paper.rows([(words.phase(p), show(size), size) for p, size in phases.items()], max(phases.values(), default=0))
        totals = ledger.totals()
        paper.heading("Totals (low to high)")
        names = {"max_allocated": "PyTorch allocated", "max_reserved": "PyTorch reserved", "device_used": "nvidia-smi shows", "host": "Host RAM of this rank"}
        for name, label in names.items():
            t = totals[name]
            if name == "host" and not t.high:  # unknown is not zero: what reading a checkpoint and loading data take is no part of this
                paper.lines.append(f"  {label:<22} {'nothing':>10}")
                paper.say("The job moves nothing to the host. Loading and data come on top of it: plan --before has the host's figure.", "dim", indent=4)
                continue
            paper.lines.append(f"  {label:<22} {show(t.expected):>10}   ({show(t.low)} to {show(t.high)})")
    _missing(paper, run)
    _assumed(paper, [fact for fact in run.facts.values() if fact.kind in ("assumed", "inferred")])
    for note in (*contradictions(run), *ledger.notes):
        paper.say(f"Note: {note}", "dim")
    paper.lines.append("")
    paper.say("More: --explain PART opens the formulas, --phase PHASE another moment, --json everything.", "dim")
    return paper.text()


def plan(plan: Plan, paper: Paper, verdict: str) -> str:
    """The least set of changes with the exact lines."""
    if not plan.steps and not plan.summary:
        return paper.text()
    paper.heading(words.plan_heading(verdict))
    if plan.summary:
        paper.say(plan.summary, indent=2)
    for number, step in enumerate(plan.steps, 1):
        _step(paper, f"{number}.", step)
    if plan.irreducible:
        paper.say(plan.irreducible, indent=2)
    if plan.runner_up:
        paper.say("Or: " + ", then ".join(s.title for s in plan.runner_up), "dim", indent=2, hang=6)
        for line in (line for step in plan.runner_up for lines in step.settings.values() for line in lines):
            paper.verbatim(line, "dim", indent=6)
    if plan.fewer is not None:
        _fewer(paper, plan)
    return paper.text()


def _fewer(paper: Paper, plan: Plan) -> None:
    from advisor.render.fewer import sentences

    paper.heading("On fewer cards")
    lines = [[line for some in found.lines.values() for line in some] for found in plan.fewer or ()] or [[]]
    for said, own in zip(sentences(plan), lines, strict=True):
        paper.say(said, indent=2)
        for line in own:
            paper.verbatim(line, "dim", indent=6)


def _verdict(paper: Paper, verdict: str, sentence: str) -> None:
    paper.say(f"{words.VERDICTS.get(verdict, verdict)}. {sentence}", "bold", _COLOURS.get(verdict, "yellow"))


def _width(paper: Paper, run: Run | None, ledger: Ledger) -> None:
    from advisor.render.width import explained

    if (said := explained(run, ledger)) is not None:
        paper.say(said, indent=2)


def _peak(paper: Paper, ledger: Ledger, usable: int | None, why: str | None, phase: str | None = None) -> None:
    peak = ledger.peak((phase,) if phase else None)
    if not peak.bytes:
        return
    outside = {part: ledger.outside(part) for part in ("allocator", "context")}
    need = peak.bytes + outside["context"]
    name = "Peak" if phase is None else "Largest moment"
    inside = f", {show(peak.bytes)} of it allocated by PyTorch" if need != peak.bytes else ""
    paper.heading(f"{name} {words.moment(peak.phase)}: {show(need)} needed{inside} ({ledger.kind})")
    if usable is not None:
        paper.gauge(need, usable)
        left = usable - need
        room = f"{show(left)} left" if left >= 0 else f"{show(-left)} over"
        paper.say(f"{show(usable)} usable ({why}); {room}", "dim", indent=2)
    parts = {**ledger.by_part(peak.moment.id), **{k: v for k, v in outside.items() if v}}
    paper.rows([(words.part(p), show(size), size) for p, size in sorted(parts.items(), key=lambda kv: -kv[1])], max(parts.values(), default=0))
    if outside["allocator"]:
        paper.say("The allocator's cache is not needed: it gives way when the card is full.", "dim", indent=2)


def _causes(paper: Paper, findings: Iterable[Finding], verdict: str) -> None:
    found = [f for f in findings if f.confidence >= 0.05] or list(findings)[:1]
    if not found:
        return
    paper.heading(words.why_heading(verdict))
    for number, finding in enumerate(found[:CAUSES_SHOWN], 1):
        saves = words.remedy(finding.saves_bytes)
        paper.say(f"{number}. {finding.title} ({words.likely(finding.confidence)}{'; ' if saves else ''}{saves})", "bold", indent=2, hang=5)
        for says in words.distinct(finding.evidence)[:4]:
            where = f" [{says.where}]" if says.where else ""
            paper.say(f"{'for:' if says.speaks_for else 'against:'} {says.says}{where}", indent=5, hang=7)
    if len(found) > CAUSES_SHOWN:
        paper.say(f"{len(found) - CAUSES_SHOWN} more, less likely: --json lists them.", "dim", indent=2)


def _step(paper: Paper, number: str, step: Step) -> None:
    paper.say(f"{number} {step.title}", "bold", indent=2, hang=5)
    paper.say("; ".join(filter(None, (changing.sizes(step, "to"), *changing.effects(step)))), indent=5)
    if step.why:
        paper.say(step.why, "dim", indent=5)
    for framework, lines in step.settings.items():
        paper.say(f"{changing.place(framework)}:", "dim", indent=5)
        for line in lines:
            paper.verbatim(line, "green", indent=7)


def _formulas(paper: Paper, ledger: Ledger, part: str, phase: str | None) -> None:
    paper.heading(f"{words.part(part)}: {words.meaning(part)}" if words.meaning(part) else words.part(part))
    moment = ledger.peak((phase,) if phase else None).moment.id
    holdings = [h for h in ledger.holdings if h.part == part and h.bytes]
    if not holdings:
        paper.say("Nothing of this part is held.", indent=2)
    for holding in sorted(holdings, key=lambda h: -h.bytes):
        here = "" if moment in holding.moments or not holding.moments else " (not alive at the peak)"
        place = "" if holding.device == "gpu" else f", on the {holding.device}"
        paper.say(f"{holding.name}: {show(holding.bytes)}{place}{here}", "bold", indent=2)
        paper.say(explain(holding), indent=4, hang=6)
        paper.say(f"source: {holding.source}", "dim", indent=4, hang=6)
        if holding.error:
            paper.say(f"known error: {holding.error}", "dim", indent=4, hang=6)


def _assumed(paper: Paper, facts: Sequence[Fact]) -> None:
    if not facts:
        return
    paper.heading("What was assumed (--set FIELD=VALUE corrects it)")
    for fact in facts[:ASSUMED_SHOWN]:
        why = f": {fact.why}" if fact.why else f": {fact.where}" if fact.where else ""
        paper.say(f"{fact.field} = {words.value(fact.value)}{why}", indent=2, hang=4)
    if len(facts) > ASSUMED_SHOWN:
        paper.say(f"and {len(facts) - ASSUMED_SHOWN} more: --json lists them.", "dim", indent=2)


def _not_understood(paper: Paper, report: Report, limit: int) -> None:
    if not report.not_understood:
        return
    paper.heading("What was read and not counted")  # unknown keys, and known ones that no estimate has a part for: each says which
    for item in report.not_understood[:limit]:
        paper.say(f"{item.where}: {item.text[:160]} ({item.why})", indent=2, hang=4)
    if len(report.not_understood) > limit:
        paper.say(f"and {len(report.not_understood) - limit} more: --json lists them.", "dim", indent=2)


def _missing(paper: Paper, run: Run) -> None:
    if run.missing:
        paper.heading("Not known, and it decides")
        for field in run.missing:
            paper.say(field, indent=2)


def _rest(paper: Paper, report: Report) -> None:
    counts = [(len(report.cleared), "cleared"), (len(report.not_applicable), "do not apply"), (len(report.could_not_tell), "could not be told")]
    said = ", ".join(f"{n} {what}" for n, what in counts if n)
    paper.lines.append("")
    if said:
        paper.say(f"Other causes looked for: {said}.", "dim")
    paper.say("More: --json has everything; `advisor ui` shows the same report as a page.", "dim")
