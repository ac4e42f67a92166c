"""What the counters hold beyond the estimate, and which single addition has that size.

The failing phase's estimated peak is taken from the bytes that were needed. What is left is compared with the copies a training job
can hold without meaning to: the weights once more, the widening to fp32, whole gradients or optimizer states where a share was due.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.rules import counters, residual
from advisor.rules.estimating import ledger_of
from advisor.rules.situation import QUANTISED, parameters
from advisor.run import Run
from advisor.units import show

CLOSE = 0.07  # of the addition: allocator rounding and the estimate's small parts


class Addition(Struct, frozen=True):
    """Something that a run can hold beyond what is written: ``kind`` for rules, ``name`` for people."""

    kind: str
    name: str
    size_bytes: int


def left_over(run: Run, evidence: Evidence) -> int | None:
    """Bytes needed beyond the estimate at the failing phase; ``None`` where there is nothing to compare or the estimate covers it."""
    ledger, wanted, failure = ledger_of(run), counters.of(evidence).wanted, evidence.failure
    if ledger is None or wanted is None or failure is None:
        return None
    group = residual.GROUPS.get(failure.phase or "")
    present = {m.phase for m in ledger.moments}
    over = wanted - ledger.peak(group if group is not None and present & set(group) else None).bytes
    return over if over > residual.LEAST_ERROR else None


def additions(run: Run, evidence: Evidence) -> Iterator[Addition]:
    """What could be there as well, for this model and strategy."""
    count, job = parameters(run, evidence), run.job
    if count is None:
        return
    shard = max(1, job.parallel.shard or 1)
    width = 4 if job.precision.weights == "fp32" else 2
    name = "fp32" if width == 4 else "16-bit"
    yield Addition("weights-copy", f"one more {name} copy of the weights", count * width)
    if shard > 1:
        yield Addition("weights-unsharded", f"the {name} weights whole instead of a share of 1/{shard}", round(count * width * (1 - 1 / shard)))
        yield Addition("gradients-unsharded", f"{name} gradients whole instead of a share of 1/{shard}", round(count * width * (1 - 1 / shard)))
        yield Addition("optimizer-unsharded", f"Adam's fp32 states whole instead of a share of 1/{shard}", round(count * 8 * (1 - 1 / shard)))
        yield Addition("weights-share", f"one more share of the {name} weights", count * width // shard)
    if width == 2 and job.method.base not in QUANTISED:
        yield Addition(
            "weights-fp32", "the weights in fp32 instead of 16 bit", count * 2 // (shard if job.parallel.strategy in ("zero3", "fsdp1", "fsdp2") else 1)
        )
    if job.method.base in QUANTISED:
        yield Addition("weights-unquantised", "the weights in 16 bit instead of quantised", round(count * 1.45))


def matching(run: Run, evidence: Evidence, *kinds: str) -> str | None:
    """The sentence where what is left has the size of one of these additions."""
    over = left_over(run, evidence)
    if over is None:
        return None
    for one in additions(run, evidence):
        if (
            (not kinds or one.kind in kinds)
            and abs(over - one.size_bytes) <= max(CLOSE * one.size_bytes, residual.LEAST_ERROR / 2)
            and one.size_bytes > 2 * residual.LEAST_ERROR
        ):
            return f"{show(over)} more than the estimate explains; {one.name} is {show(one.size_bytes)}"
    return None
