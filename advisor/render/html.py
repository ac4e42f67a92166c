"""A report as one self-contained page: no script, nothing fetched, light and dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from advisor.render import changing, words
from advisor.render.fewer import sentences
from advisor.render.measured import Figure
from advisor.render.quoted import quoted
from advisor.render.width import explained
from advisor.report import Report
from advisor.units import show

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent);vertical-align:top}td.n{text-align:right;white-space:nowrap}
pre{padding:.6rem;overflow-x:auto;border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:6px}
td.w{width:45%}@media(max-width:34rem){td.w{width:20%}}.bar{display:inline-block;height:.8rem;vertical-align:middle}small{opacity:.75}code{overflow-wrap:anywhere}
""".strip()


def report(report: Report, measured: Figure | None = None) -> str:
    """The whole diagnosis; with what was measured of the run, where something was."""
    body = "\n".join(
        (
            *_head(report, measured),
            *_peak(report),
            *_causes(report),
            *_plan(report),
            *_question(report),
            *_disagreements(report),
            *_facts(report),
            *_others(report),
        )
    )
    title = f"{words.VERDICTS[report.verdict]}: training memory advisor"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _head(report: Report, measured: Figure | None) -> Iterator[str]:
    yield f"<h1>{escape(words.VERDICTS[report.verdict])}</h1><p>{escape(report.sentence)}</p>"
    if measured is not None:
        yield f"<p>{escape(measured.sentence())}</p>"
    if (said := quoted(report.evidence.failure, report.ledger)) is not None:
        yield f"<p>Quoted from the error: {escape(said)}</p>"


def _peak(report: Report) -> Iterator[str]:
    ledger = report.ledger
    if ledger is None or not ledger.peak().bytes:
        return
    parts = sorted({**ledger.by_part(), "context": ledger.outside("context")}.items(), key=lambda kv: -kv[1])
    total, most, cache = sum(size for _, size in parts), max(size for _, size in parts), ledger.outside("allocator")
    yield f"<h2>The peak, {escape(words.moment(ledger.peak().phase))} ({ledger.kind})</h2><table><thead><tr><th>Part<th>Size<th></tr></thead><tbody>"
    for part, size in parts:
        bar = f'<span class="bar" style="background:{words.colour(part)};width:{100 * size / most:.1f}%"></span>'
        yield f'<tr><td>{escape(words.part(part))}<br><small>{escape(words.meaning(part))}</small><td class="n">{show(size)}<td class="w">{bar}</tr>'
    yield f'<tr><th>Needed together<td class="n"><b>{show(total)}</b><td></tr>'
    if cache:
        yield f'<tr><td>{escape(words.part("allocator"))}<td class="n">{show(cache)}<td><small>gives way when the card is full</small></tr>'
    if report.capacity_bytes is not None:
        yield f'<tr><th>Usable<td class="n">{show(report.capacity_bytes)}<td><small>{escape(report.capacity_why or "")}</small></tr>'
    yield "</tbody></table>"
    if (said := explained(report.run, ledger)) is not None:
        yield f"<p>{escape(said)}</p>"


def _causes(report: Report) -> Iterator[str]:
    if not report.findings:
        return
    yield f"<h2>{words.why_heading(report.verdict)}</h2><ol>"
    for finding in report.findings[:6]:
        effect = words.remedy(finding.saves_bytes)
        saves = f"; {effect}" if effect else ""
        yield f"<li><b>{escape(finding.title)}</b> <small>({words.likely(finding.confidence)}{saves})</small><ul>"
        for says in words.distinct(finding.evidence)[:6]:
            where = f" <small>{escape(says.where)}</small>" if says.where else ""
            yield f"<li>{'for' if says.speaks_for else 'against'}: {escape(says.says)}{where}</li>"
        yield "</ul></li>"
    yield "</ol>"


def _plan(report: Report) -> Iterator[str]:
    plan = report.plan
    if not plan.steps and not plan.summary:
        return
    yield f"<h2>{words.plan_heading(report.verdict)}</h2><p>{escape(plan.summary)}</p><ol>"
    for step in plan.steps:
        facts = "; ".join(filter(None, (changing.sizes(step), *changing.effects(step))))
        yield f"<li><b>{escape(step.title)}</b><br><small>{escape(facts)}</small><p>{escape(step.why)}</p>"
        for framework, lines in step.settings.items():
            yield f"<p><small>{escape(changing.place(framework))}</small></p><pre><code>{escape(chr(10).join(lines))}</code></pre>"
        yield "</li>"
    yield "</ol>"
    if plan.irreducible:
        yield f"<p>{escape(plan.irreducible)}</p>"
    for said in sentences(plan):
        yield f"<p>{escape(said)}</p>"


def _question(report: Report) -> Iterator[str]:
    if report.next_question is not None:
        field = "" if report.next_question.answers else f" <code>{escape(report.next_question.field)}</code>"
        yield f"<h2>What would help most to know</h2><p>{escape(report.next_question.text)}{field}</p>"


def _disagreements(report: Report) -> Iterator[str]:
    if differing := words.disagreements(report):
        yield "<h2>What does not agree</h2><ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in differing) + "</ul>"


def _facts(report: Report) -> Iterator[str]:
    for heading, facts in (("What was read", report.read), ("What was assumed", report.assumed)):
        if facts:
            yield f"<details><summary>{heading} ({len(facts)})</summary><table><thead><tr><th>Field<th>Value<th>From</tr></thead><tbody>"
            for fact in facts:
                yield f"<tr><td><code>{escape(fact.field)}</code><td>{escape(words.value(fact.value))}<td>{escape(words.origin(fact))}</tr>"
            yield "</tbody></table></details>"


def _others(report: Report) -> Iterator[str]:
    if report.could_not_tell:
        yield f"<details><summary>Could not tell ({len(report.could_not_tell)})</summary><ul>"
        yield from (f"<li>{escape(words.title('causes', c.cause))}: {escape(c.needs)}</li>" for c in report.could_not_tell)
        yield "</ul></details>"
    yield "<p><small>Estimated by the training memory advisor; an estimate may differ from the device.</small></p>"
