"""What a second try showed ("at micro batch 1 it fails too"), and how far each cause would have let one expect it.

Where the run with the cause's fault can be estimated, the estimate of the changed run decides what was to be expected. Elsewhere (an
estimate without the cause in it says nothing of it) it is the nature of the cause: what grows with the batch goes away with it, what is
resident does not. The observations are ids in :attr:`Evidence.marks`, so that a button can add one and a link carries it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from advisor.evidence import Evidence
from advisor.job import JobError
from advisor.report import Says
from advisor.rules import counters
from advisor.rules.estimating import ledger_of
from advisor.rules.rule import Rule
from advisor.run import Run
from advisor.units import show

EXPECTED, BY_ESTIMATE = 0.8, 0.9  # probability that what is expected is seen, by the cause's nature and by an estimate: both can err
UNSETTLED = 0.5  # a cause that says nothing of the outcome, and "none of these"
SOURCE = "what was seen at a second try, against what the cause lets one expect"

WITH_BATCH = frozenset({
    "activations", "checkpointing-off", "checkpointing-broken", "logits", "loss-fallback", "attention-fallback", "vision-tokens", "padding",
    "batch-outlier", "expert-imbalance",
})  # fmt: skip
WITH_LENGTH = WITH_BATCH | {"duplicate-layout"}
RESIDENT = frozenset({
    "default-fp32-load", "framework-upcast", "kbit-upcast", "quantization-not-applied", "fp8-not-smaller", "replicated-state", "optimizer-state", "weights",
    "gradients", "capacity", "reference-copy", "sharding-inactive-at-load", "moved-before-sharding", "quantized-load-not-sharded", "saved-module-copy",
    "frozen-gradients", "gradient-buffer-wide", "gradients-unsharded", "optimizer-temporary", "projection-temporary", "save-gather", "resume-on-device",
    "merge-dequantizes", "rollout-resident", "rollout-budget", "weight-sync-overlap", "host-memory", "other-process", "ranks-on-one-gpu", "memory-cap",
    "not-memory",
})  # fmt: skip
GROWING = frozenset({"retained-graph", "retained-objects", "eval-accumulation", "fragmentation"})
LATER_ONLY = GROWING | {"batch-outlier", "eval-batch", "save-gather", "expert-imbalance", "allocator-retries"}
EARLIER = frozenset({"retained-graph"})  # of what earlier steps left: in the first step there is none
# What the run as it is written shows by itself; any other cause is in an estimate only as its fault.
AS_WRITTEN = frozenset({
    "activations", "logits", "weights", "gradients", "optimizer-state", "capacity", "replicated-state", "checkpointing-off", "vision-tokens",
})  # fmt: skip
OUTSIDE = frozenset({"other-process", "ranks-on-one-gpu", "retained-objects"})  # gone on an empty card, in a process of its own


class Observation(Struct, frozen=True):
    """One thing that can be seen. ``change``: settings of the second try, for the estimate; ``good``, ``bad``: causes that expect it, that do not."""

    says: str
    runs: bool  # the second try ran
    change: Mapping[str, Mapping[str, int]]
    good: frozenset[str]
    bad: frozenset[str]


_ONE: Mapping[str, Mapping[str, int]] = {"batch": {"micro_batch": 1}}
OBSERVATIONS: Mapping[str, Observation] = {
    "seen-batch-1-fails": Observation("At micro batch 1 it fails in the same place", False, _ONE, RESIDENT | GROWING, WITH_BATCH),
    "seen-batch-1-runs": Observation("At micro batch 1 it runs", True, _ONE, WITH_BATCH, RESIDENT),
    "seen-short-fails": Observation("With sequences a quarter as long it fails in the same place", False, {}, RESIDENT | GROWING, WITH_LENGTH),
    "seen-short-runs": Observation("With sequences a quarter as long it runs", True, {}, WITH_LENGTH, RESIDENT),
    "seen-first-step": Observation("It fails in the very first step", False, {}, RESIDENT - {"save-gather"}, LATER_ONLY),
    "seen-later": Observation(
        "It fails after many steps that went well",
        False,
        {},
        LATER_ONLY,
        (RESIDENT - {"save-gather", "host-memory", "other-process"}) | (WITH_BATCH - LATER_ONLY),
    ),
    "seen-fresh-runs": Observation("On an empty card, in a fresh process, it runs", True, {}, OUTSIDE, (RESIDENT | WITH_BATCH) - OUTSIDE),
    "seen-fresh-fails": Observation("On an empty card, in a fresh process, it fails too", False, {}, (RESIDENT | WITH_BATCH) - OUTSIDE, OUTSIDE),
    "seen-oom-kill": Observation("The kernel or the container reports an out-of-memory kill", False, {}, frozenset({"host-memory"}), frozenset()),
    "seen-no-oom-kill": Observation("Neither reports one", False, {}, frozenset(), frozenset({"host-memory"})),
}
_KERNEL = frozenset({"seen-oom-kill", "seen-no-oom-kill"})
CERTAIN = 0.98  # the kernel's own log is no second try: it says what happened
_REMEDIED = "-remedied-fails"
MOMENTS = frozenset({"seen-load", "seen-eval", "seen-save", "seen-resume"})  # settle the failure's phase (advisor.diagnosis.deciding)


def known(mark: str, causes: frozenset[str]) -> bool:
    """Whether a mark is an observation of this version (links are checked with it)."""
    return mark in OBSERVATIONS or mark in MOMENTS or (mark.endswith(_REMEDIED) and mark.removesuffix(_REMEDIED) in causes)


def remedied(cause: str) -> str:
    """The mark for "the first remedy of this cause was applied, and it fails in the same place"."""
    return f"{cause}{_REMEDIED}"


def chance(mark: str, cause: str, hypothesis: Run, evidence: Evidence) -> float:
    """How likely an observation is where this cause holds; ``UNSETTLED`` where the cause says nothing of it."""
    return _chance(mark, OBSERVATIONS[mark], cause, hypothesis, evidence)[0]


def told(rule: Rule, hypothesis: Run, evidence: Evidence) -> Iterator[Says]:
    """How each observation judges a cause; ``hypothesis``: the run with its fault, or as written where it has none."""
    for mark in evidence.marks:
        if (seen := OBSERVATIONS.get(mark)) is not None:
            chance, why = _chance(mark, seen, rule.id, hypothesis, evidence)
            weight = math.log(chance / UNSETTLED)
            if abs(weight) >= 0.05:
                yield Says(f"{seen.says.lower()}: {why}", "said by you", weight > 0, weight, mark, SOURCE)
        elif mark == remedied(rule.id):
            yield Says("its first remedy was applied, and it fails in the same place", "said by you", False, math.log(1 - EXPECTED), mark, SOURCE)


def of_none(evidence: Evidence) -> float:
    """What the kernel's word adds to "none of these": an out-of-memory kill that it reports leaves little for unknown causes; that it reports none, more."""
    return 0.0 if not set(evidence.marks) & _KERNEL else math.log((1 - CERTAIN if "seen-oom-kill" in evidence.marks else 1.0) / UNSETTLED)


def _chance(mark: str, seen: Observation, cause: str, hypothesis: Run, evidence: Evidence) -> tuple[float, str]:
    if mark in _KERNEL:
        if cause == "host-memory":
            return (CERTAIN, "that is this cause") if mark == "seen-oom-kill" else (1 - CERTAIN, "then nothing was killed for want of host memory")
        return (1 - EXPECTED, "another reason is less likely then") if mark == "seen-oom-kill" else (UNSETTLED, "")
    if mark == "seen-first-step" and cause in EARLIER:
        return 1 - CERTAIN, "before the first step nothing of an earlier one can be held"
    shown = cause in AS_WRITTEN or any(d.cause == cause for d in hypothesis.deviations)
    fits = _would_fit(mark, seen, hypothesis, evidence) if shown and cause not in GROWING else None
    if fits is not None:
        expected, why = fits
        return (BY_ESTIMATE if expected == seen.runs else 1 - BY_ESTIMATE), why
    if cause in seen.good:
        return EXPECTED, "that is what this cause lets one expect"
    return (1 - EXPECTED, "this cause would let one expect the opposite") if cause in seen.bad else (UNSETTLED, "")


def _would_fit(mark: str, seen: Observation, run: Run, evidence: Evidence) -> tuple[bool, str] | None:
    """Whether the changed run would fit by its estimate; ``None`` where nothing is changed in it, or it is close."""
    change = dict(seen.change)
    if mark.startswith("seen-short") and run.job.batch.seq_len:
        change = {"batch": {"seq_len": max(1, run.job.batch.seq_len // 4)}}
    printed = counters.of(evidence).capacity
    if printed is not None:
        capacity = printed - sum(d.bytes for d in run.deviations if d.kind == "foreign")
    elif run.usable is not None:
        capacity = run.usable[0]  # less what others hold already
    else:
        return None
    if not change or capacity <= 0:
        return None
    try:
        ledger = ledger_of(run.but(**change))
    except JobError:
        return None
    if ledger is None:
        return None
    peak = ledger.peak().bytes
    if 0.8 * capacity < peak < 1.15 * capacity:
        return None
    return peak < capacity, f"the estimate with this cause is {show(peak)} then, on a card of {show(capacity)}"
