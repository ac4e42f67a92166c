"""Report and ledger as the contract's JSON. Keys may be added, none taken away."""

from __future__ import annotations

import json
from typing import Any

from advisor.ledger import Ledger
from advisor.render.measured import Figure
from advisor.report import Plan, Report
from advisor.resolving.contradictions import contradictions
from advisor.run import Run
from advisor.units import gib

_FAILURE = (
    "kind", "where", "backend", "rank", "gpu", "requested_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes",
    "private_pool_bytes", "allowed_bytes", "phase", "consequence",
)  # fmt: skip


def text(data: dict[str, Any]) -> str:
    """JSON text for people and programs: indented, readable letters."""
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)


def of_report(report: Report, measured: Figure | None = None) -> dict[str, Any]:
    """What ``advisor diagnose --json`` prints; ``measured``: a figure that the page holds of the same run."""
    return {
        "version": 1,
        "verdict": report.verdict,
        "sentence": report.sentence,
        "phase": report.phase,
        "rank": report.rank,
        "findings": [finding.to_json() for finding in report.findings],
        "plan": [step.to_json() for step in report.plan.steps],
        "plan_fits": report.plan.fits,
        "plan_summary": report.plan.summary,
        "runner_up": [step.to_json() for step in report.plan.runner_up],
        "alternatives": [step.to_json() for step in report.plan.alternatives],
        "fewer_cards": _fewer(report.plan),
        "next_question": _question(report),
        "cleared": [{"cause": cause, "says": says} for cause, says in report.cleared],
        "not_applicable": [{"cause": cause, "why": why} for cause, why in report.not_applicable],
        "could_not_tell": [{"cause": c.cause, "needs": c.needs} for c in report.could_not_tell],
        "job": report.run.job.to_dict() if report.run else {},
        "deviations": [d.to_json() for d in report.run.deviations] if report.run else [],
        "ledger": of_ledger(report.run, report.ledger, report.verdict) if report.run and report.ledger else {},
        "measured": measured.to_json() if measured is not None else None,
        "capacity": {"usable": report.capacity_bytes, "why": report.capacity_why},
        "failures": [_failure(f) for f in report.evidence.failures],
        "read": [fact.to_json() for fact in report.read],
        "assumed": [fact.to_json() for fact in report.assumed],
        "conflicts": [{"field": c.field, "kept": c.kept.to_json(), "other": c.other.to_json()} for c in report.conflicts],
        "not_understood": [{"where": n.where, "text": n.text, "why": n.why} for n in report.not_understood],
        "sources": [{"name": s.name, "kind": s.kind, "size_bytes": s.size_bytes, "note": s.note} for s in report.sources],
        "notes": list(report.notes),
    }


def of_plan(plan: Plan, run: Run, ledger: Ledger | None, verdict: str) -> dict[str, Any]:
    """What ``advisor plan --json`` prints."""
    return {
        "version": 1,
        "verdict": verdict,
        "fits": plan.fits,
        "summary": plan.summary,
        "plan": [step.to_json() for step in plan.steps],
        "runner_up": [step.to_json() for step in plan.runner_up],
        "alternatives": [step.to_json() for step in plan.alternatives],
        "irreducible": plan.irreducible,
        "fewer_cards": _fewer(plan),
        "job": run.job.to_dict(),
        "ledger": of_ledger(run, ledger, verdict),
    }


def _fewer(plan: Plan) -> list[dict[str, Any]] | None:
    """The fewest cards that would do; ``None`` where that was not asked."""
    return None if plan.fewer is None else [found.to_json() for found in plan.fewer]


def of_ledger(run: Run, ledger: Ledger | None, verdict: str, sentence: str | None = None) -> dict[str, Any]:
    """What ``advisor estimate --json`` prints: the ledger of one rank, bytes as integers. Without a ledger its keys are empty."""
    ledger = ledger or Ledger("estimated", (), ())
    peak = ledger.peak()
    outside = [h for h in ledger.holdings if h.device == "gpu" and h.part in ("context", "allocator")]
    usable = run.usable
    return {
        "version": 1,
        "kind": ledger.kind,
        "job": run.job.to_dict(),
        "rank": ledger.rank,
        "totals": {name: interval.to_json() for name, interval in ledger.totals().items()},
        "capacity": {"usable": usable[0] if usable else None, "why": usable[1] if usable else None, "card": _card(run)},
        "verdict": verdict,
        "sentence": sentence,
        "deviations": [d.to_json() for d in run.deviations],
        "peak": {"phase": peak.phase, "moment": peak.moment.id, "bytes": peak.bytes, "holdings": [h.to_json() for h in (*peak.holdings, *outside)]},
        "phases": ledger.phases(),
        "step_seconds": _seconds(run),
        "facts": [fact.to_json() for fact in run.facts.values()],
        "missing": list(run.missing),
        "software": dict(ledger.software),
        "notes": [*contradictions(run), *ledger.notes],
    }


def _card(run: Run) -> str | None:
    gpu = run.job.hardware.gpu
    return run.card.id if run.card else gpu if isinstance(gpu, str) or gpu is None else gpu.name


def _seconds(run: Run) -> dict[str, float] | None:
    """The time of a step; ``None`` where the card is not known, so that only ratios would mean something."""
    from advisor.speed import step_time

    found = step_time(run)
    return None if found.relative else {"low": found.low, "expected": found.expected, "high": found.high}


def _question(report: Report) -> dict[str, Any] | None:
    question = report.next_question
    if question is None:
        return None
    return {"field": question.field, "text": question.text, "moves_gib": gib(question.moves_bytes), "options": list(question.options)}


def _failure(failure: Any) -> dict[str, Any]:
    return {name: value for name in _FAILURE if (value := getattr(failure, name)) is not None}
