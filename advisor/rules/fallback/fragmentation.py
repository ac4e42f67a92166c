"""The allocator holds enough bytes, but no block large enough."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.report import Doing
from advisor.rules import counters, growth, snapshots
from advisor.rules.batch.batch_outlier import last_is_longest
from advisor.rules.rule import Example, Form, Mark, Rule
from advisor.rules.samples import oom
from advisor.rules.tensors import WHOLE
from advisor.run import Run
from advisor.techniques.conditions import sleeping_engine
from advisor.units import show


def _enough(_run: Run, evidence: Evidence) -> str | None:
    """Stranded and free bytes together exceed the request: it failed for want of one block."""
    figures = counters.of(evidence)
    if figures.stranded is None or figures.requested is None or figures.capacity is None:
        return None
    together = figures.stranded + (figures.free or 0)
    if figures.stranded >= 0.06 * figures.capacity and together > figures.requested and figures.stranded >= 0.8 * figures.requested:
        return f"{show(figures.stranded)} reserved but unallocated and {show(figures.free or 0)} free, against a request of {show(figures.requested)}"
    return None


UNKNOWN_CARD = 4 << 30  # stranded bytes that are much on any card in use


def _enough_anywhere(_run: Run, evidence: Evidence) -> str | None:
    """The text was cut: neither the card's size nor what is free is in it, and what is stranded is about what was asked for."""
    figures = counters.of(evidence)
    if figures.stranded is None or figures.requested is None or (figures.capacity is not None and figures.free is not None):
        return None
    if figures.stranded < UNKNOWN_CARD or figures.stranded < 0.8 * figures.requested:
        return None
    return f"{show(figures.stranded)} reserved but unallocated, against a request of {show(figures.requested)}"


def _close(run: Run, evidence: Evidence) -> str | None:
    """The pieces are less than one and a half times the request: an only slightly larger batch would have failed without any hole."""
    figures = counters.of(evidence)
    if _enough(run, evidence) is None or figures.stranded is None or figures.requested is None or figures.stranded >= 1.5 * figures.requested:
        return None
    return f"{show(figures.stranded)} in pieces are hardly more than the {show(figures.requested)} that were asked for"


def _barely(_run: Run, evidence: Evidence) -> str | None:
    """The pieces do only together with the free bytes: one such request more and the card is full."""
    figures = counters.of(evidence)
    if _enough(_run, evidence) is not None or figures.stranded is None or figures.requested is None or figures.capacity is None:
        return None
    together = figures.stranded + (figures.free or 0)
    if figures.stranded >= 0.06 * figures.capacity and together > figures.requested:
        return f"{show(figures.stranded)} in pieces would do only together with the {show(figures.free or 0)} that are free"
    return None


def _much(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    much = figures.stranded is not None and figures.capacity is not None and figures.stranded >= 0.1 * figures.capacity
    return f"{show(figures.stranded or 0)} are stranded in partly used segments, a tenth of the card or more" if much else None


def _little(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    little = figures.stranded is not None and figures.capacity is not None and figures.stranded < 0.03 * figures.capacity
    return f"only {show(figures.stranded or 0)} are reserved but unallocated" if little else None


def _reserved_climbs(_run: Run, evidence: Evidence) -> str | None:
    steady = {s.label for s in growth.peaks(evidence) + growth.allocated(evidence) if s.flat}
    for series in growth.reserved(evidence):
        if series.rises and (series.label in steady or steady):
            return f"reserved rises from {show(series.values[0])} to {show(series.values[-1])} while the allocated peaks stay"
    return None


def _giant(_run: Run, evidence: Evidence) -> str | None:
    figures = counters.of(evidence)
    if figures.requested is None or figures.capacity is None or figures.requested < 0.25 * figures.capacity:
        return None
    return f"{show(figures.requested)} in one piece is a quarter of the card or more: that request is what is unusual"


def _beyond(_run: Run, evidence: Evidence) -> str | None:
    """A tensor as large as the card fits beside nothing, however its memory is arranged."""
    figures = counters.of(evidence)
    if figures.requested is None or figures.capacity is None or figures.requested < WHOLE * figures.capacity:
        return None
    return f"{show(figures.requested)} in one piece on a card of {show(figures.capacity)}: no arrangement leaves room for that"


def _pools(_run: Run, evidence: Evidence) -> str | None:
    failure = evidence.failure
    held = failure.private_pool_bytes if failure is not None else None
    much = held is not None and failure is not None and failure.capacity_bytes is not None and held > 0.08 * failure.capacity_bytes
    return f"private pools hold {show(held or 0)}: they come first" if much else None


def _expandable(run: Run, _evidence: Evidence) -> str | None:
    allocator = run.job.framework.allocator or {}
    return "expandable segments are on" if allocator.get("expandable_segments") is True else None


CONTEXT = 1 << 30  # bytes of a CUDA context with its libraries, rounded up


def _driver_pool(_run: Run, evidence: Evidence) -> str | None:
    """``cudaMallocAsync`` prints no reserved figure: what is neither allocated nor free, beyond a context, is its pool's or another process's."""
    failure, figures = evidence.failure, counters.of(evidence)
    if failure is None or dict(failure.details).get("allocator") != "cudaMallocAsync":
        return None
    if None in (failure.capacity_bytes, failure.free_bytes, failure.allocated_bytes) or figures.requested is None:
        return None
    between = (failure.capacity_bytes or 0) - (failure.free_bytes or 0) - (failure.allocated_bytes or 0) - CONTEXT
    if between < max(figures.requested, 0.06 * (failure.capacity_bytes or 0)):
        return None
    return f"{show(between)} are neither allocated nor free: the driver's pool keeps them in pieces, where no other process does"


_LIMIT, _IN_USE = pattern(r"^Limit:\s{1,40}(\d{6,18})$"), pattern(r"^InUse:\s{1,40}(\d{6,18})$")


def _bfc(_run: Run, evidence: Evidence) -> str | None:
    """XLA's and TensorFlow's BFC allocator prints its limit and what is in use: what lies between them was enough, and not in one piece."""
    requested = counters.of(evidence).requested
    found = {name: next((int(m[1]) for line in evidence.lines if (m := form.search(line.text))), None) for name, form in (("limit", _LIMIT), ("used", _IN_USE))}
    limit, used = found["limit"], found["used"]
    if requested is None or limit is None or used is None or limit - used < requested:
        return None
    return f"{show(limit - used)} of the pool's {show(limit)} are not in use, against a request of {show(requested)}"


_UNSUPPORTED = re.compile(  # c10 CUDAAllocatorConfig.h TORCH_WARN_ONCE; vllm device_allocator/cumem.py
    r"expandable_segments not supported on this platform|[Ee]xpandable segments are not compatible with memory pool", re.IGNORECASE
)


def _without_expandable(run: Run, evidence: Evidence) -> Form | None:
    """Expandable segments are on already, or cannot be: what is left is fewer shapes, and giving the cache back."""
    on = (run.job.framework.allocator or {}).get("expandable_segments") is True
    refused = any(_UNSUPPORTED.search(line.text) for line in evidence.lines)
    windows = "windows" in (run.job.framework.versions or {})
    if not on and not refused and not windows:
        return _between_engine_and_trainer(run)
    if windows:
        return Form(f"{RULE.title} (PyTorch has no expandable segments on Windows)", ("bounded-shapes", "empty-cache"))
    why = "expandable segments are on already" if on and not refused else "expandable segments are refused here"
    return Form(f"{RULE.title} ({why})", ("bounded-shapes", "empty-cache"))


def _between_engine_and_trainer(run: Run) -> Form | None:
    """verl's trainer and a vLLM that sleeps share a process: segments may grow while the trainer works, and only then."""
    if run.job.framework.name != "verl" or not sleeping_engine(run):
        return None
    lines = {
        "verl": (
            "pip install -U 'verl>=0.6'   # turns expandable segments on once the engine sleeps, and off before it wakes",
            "set_expandable_segments(True)   # verl.utils.device, before update_actor: the same by hand",
        )
    }
    why = "The environment variable would hold for the engine too, whose own allocator (cumem) refuses it: verl switches it between the two."
    doing = Doing("Let segments grow while the trainer works", why, lines)
    return Form(RULE.title, ("expandable-segments", "bounded-shapes", "empty-cache"), {"expandable-segments": doing})


RULE = Rule(
    id="fragmentation",
    tier="fallback",
    title="Enough memory is reserved, but no block is large enough: the allocator's cache is fragmented",
    cleared="Little is reserved but unallocated: the memory is in use, not fragmented.",
    prior=-1.5,
    marks=(
        Mark(
            "fragmentation-enough",
            3.5,
            "enough in pieces",
            "c10 CUDACachingAllocator: reserved - allocated after release_cached_blocks is split remainders",
            when=_enough,
        ),
        Mark("fragmentation-cut", 3.0, "enough in pieces", "the same counters, of a text that was cut", when=_enough_anywhere),
        Mark(
            "fragmentation-close", -1.0, "hardly more than the request", "the more the pieces exceed it, the less it is only that the card is full", when=_close
        ),
        Mark("fragmentation-barely", 2.0, "barely enough in pieces", "the same counters", when=_barely),
        Mark("fragmentation-larger-batch", -1.0, "the batch itself is far larger", "pieces were enough for the batches before it", when=last_is_longest),
        Mark("fragmentation-much", 1.5, "much is stranded", "the same counter", when=_much),
        Mark(
            "fragmentation-little",
            -2.0,
            "little is stranded",
            "the same counter; the sentence about expandable segments is constant and says nothing",
            when=_little,
        ),
        Mark("fragmentation-giant", -1.0, "a very large request", "no allocator keeps a quarter of the card in one piece", when=_giant),
        Mark("fragmentation-beyond", -4.0, "larger than any room", "the request against the capacity", when=_beyond),
        Mark("fragmentation-pools", -1.5, "private pools", "c10 CUDACachingAllocator prints them apart", when=_pools),
        Mark("fragmentation-climbs", 2.5, "reserved climbs", "max_memory_allocated flat while memory_reserved rises", when=_reserved_climbs),
        Mark("fragmentation-expandable", -2.0, "expandable segments", "c10 ExpandableSegment maps pages behind one address range", when=_expandable),
        Mark(
            "fragmentation-varied-gemm",
            0.5,
            "shapes change from step to step",
            "grouped experts and offloaded states allocate other sizes each step",
            pattern=r"grouped_gemm|\bgmm\(|load_megatron_optimizer|backload|onload|load_fsdp_(optimizer|model)_to_gpu",
            on="frame",
            when=_enough,
        ),
        Mark(
            "fragmentation-driver-pool",
            2.5,
            "the driver's pool",
            "c10 CUDAMallocAsyncAllocator.cpp prints allocated, device limit and free; pytorch issue 110194",
            when=_driver_pool,
        ),
        Mark("fragmentation-bfc", 4.0, "enough in pieces", "xla tsl/framework/bfc_allocator.cc: its Stats at a failed allocation", when=_bfc),
        Mark("fragmentation-snapshot", 3.0, "holes in the snapshot", snapshots.SOURCE, when=lambda _, e: snapshots.holes(e)),
    ),
    form=_without_expandable,
    remedies=("expandable-segments", "bounded-shapes", "empty-cache"),
    fires=(
        Example("a text that was cut", text="RuntimeError: CUDA out of memory. Tried to allocate 5.20 GiB. 8.11 GiB is reserved by PyTorch but unallocated.\n"),
        Example(
            "XLA's pool has room enough, in pieces",
            text="W tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 14.30GiB\nStats:\n"
            "Limit:                     61293780992\nInUse:                     38847979520\n\n"
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 14.30GiB.\n",
        ),
        Example("a fifth of the card in pieces", text=oom("3.40 GiB", allocated=62.0, unallocated=14.0, free=1.0)),
    ),
    quiet=(Example("the card is full of tensors", text=oom("512.00 MiB", allocated=76.9, unallocated=0.6)),),
)
