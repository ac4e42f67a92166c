"""What a plan and its steps say, with this run's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.ledger import Ledger
from advisor.planner.storage import MOST_HOST_GIB, RENTED_HOST_GIB, host_of_node
from advisor.report import SAME_TIME
from advisor.run import Run
from advisor.units import GIB, show

if TYPE_CHECKING:
    from advisor.planner.measuring import Candidate

PART_WORDS = {
    "dequantised": "dequantised weights",
    "reference": "the reference model",
    "rollout-weights": "the engine's weights",
    "rollout-cache": "the engine's cache",
}
PHASE_WORDS = {
    "loss": "the loss",
    "step": "the optimizer step",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "rollout": "generation",
    "eval": "evaluation",
}
NEGLIGIBLE = 1 << 20


def saving(before: Ledger, after: Ledger, used_before: int, used_after: int) -> str:
    """Which parts at the peak became smaller, or larger: ``Takes 12.1 GiB off the peak (activations 20.3 GiB to 8.2 GiB).``

    Where the peak moves to another phase, the parts are those of the phase in which it was: at the new one others are alive.
    """
    now, then = before.peak(), after.peak()
    off = now.bytes - then.bytes
    if off > NEGLIGIBLE:
        if now.phase == then.phase or now.phase not in after.phases():
            return f"Takes {show(off)} off the peak{_moved(before.by_part(), after.by_part(), now.bytes)}."
        there = _moved(before.by_part(), after.by_part(after.peak((now.phase,)).moment.id), now.bytes, when=f"{_at(now.phase)}: ")
        return f"Takes {show(off)} off the peak{there}. The peak moves from {_named(now.phase)} to {_named(then.phase)}."
    if off < -NEGLIGIBLE:
        return f"Adds {show(-off)} to the peak{_moved(before.by_part(), after.by_part(), now.bytes, both=True)}."
    if used_before - used_after > NEGLIGIBLE:
        return f"Hands back {show(used_before - used_after)} that the allocator or other libraries held; the tensors at the peak stay."
    return f"The peak {_at(now.phase)} stays.{_elsewhere(before, after)}"


def _moved(parts: Mapping[str, int], later: Mapping[str, int], peak: int, *, both: bool = False, when: str = "") -> str:
    """`` (activations 20.3 GiB to 8.2 GiB, ...)``: at most three parts that shrank, and, with ``both``, those that grew. ``when``: said before them."""
    names = {*parts, *later}
    moved = sorted(((parts.get(p, 0) - later.get(p, 0), p) for p in names), key=lambda x: -abs(x[0]) if both else -x[0])
    told = [f"{PART_WORDS.get(p, p)} {show(parts.get(p, 0))} to {show(later.get(p, 0))}" for d, p in moved if (abs(d) if both else d) > 0.02 * max(1, peak)]
    return f" ({when}{', '.join(told[:3])})" if told else ""


def _elsewhere(before: Ledger, after: Ledger) -> str:
    """Where a change lowers what is held, if not at the peak: the phase in which it saves most."""
    then = after.phases()
    saved, phase = max(((size - then.get(phase, size), phase) for phase, size in before.phases().items()), default=(0, ""))
    if saved <= NEGLIGIBLE:
        return " What it changes lies outside of what is estimated."
    now, later = before.peak((phase,)), after.peak((phase,))
    return f" {_at(phase).capitalize()} {show(saved)} less is held{_moved(before.by_part(now.moment.id), after.by_part(later.moment.id), now.bytes)}."


def bounded(before: Ledger, after: Ledger) -> str:
    """What a change takes off the high end alone: ``How much it saves is not known: at most 7.4 GiB (...).``"""
    high, then = before.totals()["max_allocated"].high, after.totals()["max_allocated"].high
    return f"How much it saves is not known: at most {show(high - then)} (the high end of the estimate falls from {show(high)} to {show(then)})."


def _at(phase: str) -> str:
    return f"{'at' if phase == 'loss' else 'in'} {_named(phase)}"


def _named(phase: str) -> str:
    return PHASE_WORDS.get(phase, phase)


def host(before: Candidate, after: Candidate, end: Candidate | None = None) -> str:
    """What a change asks of the host: bytes of one node, for all of its ranks; at the end of a plan, whose later steps may leave less to move."""
    ranks = max(1, min(after.run.world, after.run.job.hardware.gpus_per_node or 1))
    need = host_of_node(after.ledger, ranks)
    if need - host_of_node(before.ledger, ranks) <= NEGLIGIBLE:
        return ""
    if end is not None:
        need = min(need, host_of_node(end.ledger, max(1, min(end.run.world, end.run.job.hardware.gpus_per_node or 1))))
    offload, strategy = after.run.job.offload, after.run.job.parallel.strategy or ""
    # torch's CPUOffload and CPUOffloadPolicy pin by default, and so do the libraries that offload activations; DeepSpeed only where it is asked to
    pinned = offload.activations == "cpu" or (offload.parameters == "cpu" and strategy.startswith("fsdp"))
    known = after.run.job.hardware.host_memory_gib
    asked = "" if known is not None else "; make sure that it has so much"
    if known is None and need > RENTED_HOST_GIB * GIB:
        asked = f", more than the {show(RENTED_HOST_GIB * GIB)} of rented nodes with eight GPUs"
        if need > MOST_HOST_GIB * GIB:
            asked = f", and no server for GPUs takes more than {show(MOST_HOST_GIB * GIB)}"
    return f" A node's host then holds {show(need)}{' of pinned memory' if pinned else ''}{f' for its {ranks} GPUs' if ranks > 1 else ''}{asked}."


def hardware(run: Run) -> str:
    """Which cards, and how many of them."""
    name = run.card.name if run.card is not None else "the same card"
    nodes = run.job.hardware.nodes or 1
    return f"{run.world} x {name}{f', {nodes} nodes' if nodes > 1 else ''}."


def price(ratio: float | None) -> str:
    """What it costs in time."""
    if ratio is None:
        return ""
    if abs(ratio - 1) < SAME_TIME:
        return " A token takes as long as before."
    return f" A token takes {abs(ratio - 1) * 100:.0f}% {'longer' if ratio > 1 else 'less'} (estimated)."


def ring(run: Run) -> str:
    """Whether the ring's exchange hides behind attention at this length, card and link."""
    from advisor.pace.ring import ring as of

    found = of(run)
    if found is None:
        return ""
    if found.stall <= 0:
        return f" The ring hides: {found.tokens:,} tokens a rank, and from {found.hides_from:,} on computing takes longer than passing on."
    return (
        f" The ring stalls: it hides from {found.hides_from:,} tokens a rank, and there are {found.tokens:,};"
        f" passing on takes {found.stall * 100:.0f}% longer than attention."
    )


def learning(exact: bool, alters: bool) -> str:
    """Whether the numbers stay the same."""
    if alters:
        return " It changes what is learned."
    return "" if exact else " Results differ within the precision it gives up."


def spoken(technique: str, title: str) -> str:
    """What a run with room is changed to, inside a sentence."""
    if technique == "zero-2":
        return "divide less, with whole parameters on every card (ZeRO-2 in place of 3)"
    return title if title[1:2].isupper() else f"{title[0].lower()}{title[1:]}"


def without_estimate(missing: Sequence[str]) -> str:
    """Why no change has a figure: only what is missing is named. ``missing``: fields of the job that decide the estimate."""
    named = {"model": "the model", "batch.micro_batch": "the micro batch", "batch.seq_len": "the sequence length"}
    wanted = [says for field, says in named.items() if any(m == field or m.startswith(f"{field}.") for m in missing)]
    if not wanted:
        return "How much a change saves cannot be told: this run cannot be estimated."
    listed = wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} and {wanted[-1]}"
    return f"How much a change saves cannot be told before {listed} {'is' if len(wanted) == 1 else 'are'} known."
