"""What fills the card at the failing moment, by the estimate of the run as written: the material of footprint causes."""

from __future__ import annotations

from collections.abc import Callable

from advisor.evidence import Evidence
from advisor.ledger import Ledger
from advisor.rules import residual
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Mark
from advisor.run import Run
from advisor.units import show

GUESSED = frozenset({"assumed"})
DECIDING = {  # part -> job fields that set its size: where one of them was only assumed, the share says nothing
    "activations": ("batch.micro_batch", "batch.seq_len"),
    "logits": ("batch.micro_batch", "batch.seq_len"),
    "attention": ("batch.micro_batch", "batch.seq_len"),
}
RESTS_ON = {  # part -> fields whose defaults decide how large it is
    "activations": ("activations.checkpointing",),
    "logits": ("activations.loss",),
}


def at_failure(run: Run, evidence: Evidence) -> tuple[dict[str, int], int, str] | None:
    """Parts, their sum (bytes) and the phase: at the peak of the failing phase, else at the peak of the whole run."""
    ledger = ledger_of(run)
    if ledger is None:
        return None
    failure = evidence.failure
    peak = ledger.peak(_phases(ledger, failure.phase if failure else None))
    if not peak.bytes:
        return None
    return ledger.by_part(peak.moment.id), peak.bytes, peak.phase


def _phases(ledger: Ledger, phase: str | None) -> tuple[str, ...] | None:
    group = residual.GROUPS.get(phase or "")
    present = {m.phase for m in ledger.moments}
    return group if group is not None and present & set(group) else None


def share(run: Run, evidence: Evidence, *parts: str) -> float:
    """The parts' share of the bytes at the failing moment; 0 where it cannot be told or rests on an assumed size."""
    found = at_failure(run, evidence)
    if found is None or any(guessed(run, path) for part in parts for path in DECIDING.get(part, ())):
        return 0.0
    held, total, _ = found
    return sum(held.get(part, 0) for part in parts) / total


def guessed(run: Run, path: str) -> bool:
    """Whether a value is an assumption (or unknown) rather than read, stated, inferred or a framework's default."""
    fact = run.facts.get(path)
    return fact is None or fact.kind in GUESSED


def share_marks(
    cause: str,
    *parts: str,
    some: float,
    most: float,
    weights: tuple[float, float],
    noun: str,
    unless: Callable[[Run, Evidence], str | None] | None = None,
) -> tuple[Mark, Mark]:
    """Two marks: the parts are at least ``some`` of the failing moment, and at least ``most``: each adds its weight.

    ``unless``: where it returns a reason, the share says nothing.
    """

    def at_least(threshold: float) -> Mark:
        def when(run: Run, evidence: Evidence) -> str | None:
            part = share(run, evidence, *parts)
            found = at_failure(run, evidence)
            if found is None or part < threshold or (unless is not None and unless(run, evidence)):
                return None
            _, total, phase = found
            return f"{noun} are {part:.0%} of the {show(total)} that the estimate shows at the {phase} peak ({show(part * total)})"

        rests_on = tuple(path for part in parts for path in RESTS_ON.get(part, ()))
        weight = weights[0] if threshold == some else weights[1]
        return Mark(
            f"{cause}-share-{round(threshold * 100)}",
            weight,
            f"{noun} fill the card",
            "the estimate's ledger of the run as written",
            when=when,
            rests_on=rests_on,
        )

    return at_least(some), at_least(most)
