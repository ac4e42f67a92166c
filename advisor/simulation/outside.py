"""What the probe's own recording does not hold: the allocator's cache from its replay, the context, and how sure the figures are."""

from __future__ import annotations

import re

from msgspec.structs import replace

from advisor.ledger import Holding, Interval, Ledger
from advisor.run import Run

# Largest error on the 41 public single-GPU runs of knowledge/measurements (max_allocated, quality A), probed with the versions that they used: median
# 0.0004, nine in ten within 0.018. The largest are what the sources do not state: the group size of a GPTQ base, fused kernels for adapters.
OWN_VERSIONS = 0.027
EXPANDABLE_ON_AMD = (2, 11)  # before: "expandable_segments not supported on this platform" (c10/cuda/CUDACachingAllocator.cpp; pytorch PR 173330, 177974)
OTHER_VERSIONS = 0.20  # the same runs with the newest transformers instead of their own: worst case (median 0.028)


def modes(run: Run) -> tuple[str, ...]:
    """The allocator's modes that the run may have, the likelier first: as stated, as its launcher sets it, as its card allows."""
    from advisor.arithmetic.outside import EXPANDS

    stated = (run.effective.framework.allocator or {}).get("expandable_segments")
    if stated is None and run.card is not None and run.card.vendor == "amd" and not _since(run, EXPANDABLE_ON_AMD):
        return ("default",)
    if stated is None:
        return ("expandable", "default") if run.job.framework.name in EXPANDS else ("default", "expandable")
    return ("expandable",) if stated else ("default",)


def _since(run: Run, first: tuple[int, int]) -> bool:
    found = re.match(r"(\d+)\.(\d+)", str((run.effective.framework.versions or {}).get("torch", "")))
    return found is not None and (int(found[1]), int(found[2])) >= first


def complete(run: Run, ledger: Ledger, reserved: dict[str, int], *, same_versions: bool) -> Ledger:
    """The probed ledger with cache and context as holdings, and totals with their ranges.

    ``reserved``: the replay's ``max_reserved`` by the allocator's :func:`modes`.
    """
    from advisor.arithmetic.outside import CONTEXT_HIGH, CONTEXT_LOW

    always = frozenset(m.id for m in ledger.moments)
    peak = ledger.peak().bytes
    others = _estimated(run)
    guessed = peak + sum(h.bytes for h in others if h.part == "allocator")
    expected = next(iter(reserved.values()), guessed)
    cache = Holding(
        "allocator", "cached blocks of the allocator", max(0, expected - peak), always, "max_reserved - max_allocated",
        {"max_reserved": expected, "max_allocated": peak, **{f"{mode} mode": size for mode, size in reserved.items()}},
        "the recorded stream replayed through the allocator's rules (c10/cuda/CUDACachingAllocator.cpp)" if reserved else "the estimate's: no whole stream",
    )  # fmt: skip
    context = [replace(h, moments=always) for h in others if h.part == "context"]
    loaded = sum(h.bytes for h in context)
    off = OWN_VERSIONS if same_versions else OTHER_VERSIONS

    def widths(whole: Ledger) -> dict[str, Interval]:
        low, high = min([peak if not reserved else expected, *reserved.values()]), max([expected, *reserved.values()])
        lowest, highest = low * (1 - off), high * (1 + off)
        host = whole.host_peak()
        return {
            "max_allocated": Interval(round(peak * (1 - off)), peak, round(peak * (1 + off))),
            "max_reserved": Interval(round(lowest), expected, round(highest)),
            "device_used": Interval(round(lowest) + min(loaded, CONTEXT_LOW), expected + loaded, round(highest) + max(loaded, CONTEXT_HIGH)),
            "host": Interval(host, host, host),
        }

    return replace(ledger, holdings=(*ledger.holdings, cache, *context), widths=widths)


def _estimated(run: Run) -> tuple[Holding, ...]:
    from advisor.arithmetic import CannotEstimate, estimate

    try:
        return estimate(run).holdings
    except CannotEstimate:
        return ()
