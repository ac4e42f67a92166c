"""What a second try could show that would tell the likeliest causes apart: offered as buttons, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.evidence import Evidence
from advisor.report import Finding, Seen
from advisor.rules import observing
from advisor.run import Run

OFFERED = 5
LEAST_BITS = 0.02  # below this an outcome is the same under all causes
PAIRS = (("seen-batch-1-fails", "seen-batch-1-runs"), ("seen-short-fails", "seen-short-runs"), ("seen-fresh-runs", "seen-fresh-fails"))
ALONE = ("seen-first-step", "seen-later")


def follow_ups(findings: Sequence[Finding], run: Run, evidence: Evidence) -> tuple[Seen, ...]:
    """Outcomes by how much they are expected to tell, then "the first change was made, and it still fails"."""
    failure = evidence.failure
    if failure is None or not findings or failure.kind in ("not-memory", "host-memory"):
        return ()
    said = set(evidence.marks)
    ranked: list[tuple[float, tuple[str, ...]]] = []
    for pair in (*PAIRS, ALONE):
        if said & set(pair) or (pair[0] == "seen-batch-1-fails" and run.job.batch.micro_batch == 1):
            continue
        bits = max(_tells(mark, findings, run, evidence) for mark in pair)
        if bits >= LEAST_BITS:
            ranked.append((bits, pair))
    marks = [mark for _, pair in sorted(ranked, key=lambda r: -r[0]) for mark in pair][:OFFERED]
    out = [Seen(mark, observing.OBSERVATIONS[mark].says) for mark in marks]
    first = observing.remedied(findings[0].cause)
    if first not in said:
        out.append(Seen(first, "The first change was made, and it fails in the same place"))
    return tuple(out)


def _tells(mark: str, findings: Sequence[Finding], run: Run, evidence: Evidence) -> float:
    """Bits that an outcome and its opposite are expected to tell of which cause it is."""
    prior = [f.confidence for f in findings]
    prior.append(max(0.0, 1 - sum(prior)))
    seen = [observing.chance(mark, f.cause, f.faulted or run, evidence) for f in findings] + [observing.UNSETTLED]
    total = sum(p * s for p, s in zip(prior, seen, strict=True))
    return _entropy((total, 1 - total)) - sum(p * _entropy((s, 1 - s)) for p, s in zip(prior, seen, strict=True))


def _entropy(shares: Sequence[float]) -> float:
    return -sum(s * math.log2(s) for s in shares if s > 0)
