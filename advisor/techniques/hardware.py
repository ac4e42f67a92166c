"""More or larger cards, or a smaller model: what is left when nothing else is enough."""

from __future__ import annotations

from advisor.cards import Card, catalogue
from advisor.run import Run
from advisor.techniques.conditions import strategy
from advisor.techniques.technique import NotApplicable, technique


@technique("more-gpus", tier="hardware")
def more_gpus(run: Run) -> Run | NotApplicable:
    """Twice as many cards to divide over; the effective batch stays where accumulation allows."""
    p, b, hardware = run.job.parallel, run.job.batch, run.job.hardware
    way = strategy(run)
    if way in ("none", "ddp", "megatron"):
        return NotApplicable(f"under {way} every card holds all of it, so more of them change nothing; divide first")
    accumulation = b.gradient_accumulation or 1
    batch = {"gradient_accumulation": accumulation // 2} if accumulation % 2 == 0 else {}
    per_node = hardware.gpus_per_node or 1
    grown = {"gpus_per_node": per_node * 2} if per_node * 2 <= 8 and (hardware.nodes or 1) == 1 else {"nodes": (hardware.nodes or 1) * 2}
    return run.but(parallel={"shard": (p.shard or 1) * 2}, hardware=grown, **({"batch": batch} if batch else {}))


def _lacks(card: Card, compute: str | None) -> bool:
    """Whether a card cannot compute in the job's dtype, or its rate is not known, so that no time could be given for it."""
    unable = compute in ("bf16", "fp8") and card.supports.get(compute) is False
    return unable or not (card.flops.get("bf16") or card.flops.get("fp16"))


def larger_than(card: Card | None, capacity_bytes: int | None, compute: str | None = None) -> Card | None:
    """The smallest catalogue card of the same vendor with clearly more memory (5 %), no consumer card for a server's."""
    now = card.usable()[0] if card is not None else capacity_bytes
    if now is None:
        return None
    vendor = card.vendor if card is not None else "nvidia"
    found = [c for c in catalogue().values() if c.vendor.lower() == vendor.lower() and c.usable()[0] > now * 1.05]
    found = [c for c in found if (not c.consumer or (card is not None and card.consumer)) and not _lacks(c, compute)]
    return min(found, key=lambda c: (c.usable()[0], -(c.flops.get("bf16") or 0)), default=None)


@technique("larger-gpu", tier="hardware")
def larger_gpu(run: Run) -> Run | NotApplicable:
    """The next larger card of the catalogue."""
    if run.job.hardware.gpu is None:
        return NotApplicable("the card is not known")
    usable = run.usable
    card = larger_than(run.card, usable[0] if usable else None, run.job.precision.compute)
    if card is None:
        return NotApplicable("the catalogue has no larger card of this maker")
    return run.but(hardware={"gpu": card.id})


@technique("smaller-model", tier="hardware", exact=False, estimated=False, alters_learning=True)
def smaller_model(run: Run) -> Run | NotApplicable:
    """Another model of the family with fewer parameters."""
    return run
