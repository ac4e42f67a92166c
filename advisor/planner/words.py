"""What a plan and its steps say, with this run's numbers."""

from __future__ import annotations

from advisor.ledger import Ledger
from advisor.run import Run
from advisor.units import show

PART_WORDS = {
    "dequantised": "dequantised weights",
    "reference": "the reference model",
    "rollout-weights": "the engine's weights",
    "rollout-cache": "the engine's cache",
}
NEGLIGIBLE = 1 << 20


def saving(before: Ledger, after: Ledger, used_before: int, used_after: int) -> str:
    """Which parts at the peak became smaller, or larger: ``Takes 12.1 GiB off the peak (activations 20.3 GiB to 8.2 GiB).``"""
    now, then = before.peak(), after.peak()
    parts, later = before.by_part(), after.by_part()
    moved = sorted(((parts.get(p, 0) - later.get(p, 0), p) for p in {*parts, *later}), reverse=True)
    shrunk = [f"{PART_WORDS.get(p, p)} {show(parts.get(p, 0))} to {show(later.get(p, 0))}" for d, p in moved if d > 0.02 * max(1, now.bytes)][:3]
    detail = f" ({', '.join(shrunk)})" if shrunk else ""
    off = now.bytes - then.bytes
    if off > NEGLIGIBLE:
        moment = f" The peak moves from {now.phase} to {then.phase}." if now.phase != then.phase else ""
        return f"Takes {show(off)} off the peak{detail}.{moment}"
    if used_before - used_after > NEGLIGIBLE:
        return f"Hands back {show(used_before - used_after)} that the allocator or other libraries held; the tensors at the peak stay."
    if off < -NEGLIGIBLE:
        return f"Adds {show(-off)} to the peak."
    return "The peak of the step stays; what it changes lies outside it."


def price(ratio: float | None) -> str:
    """What it costs in time."""
    if ratio is None:
        return ""
    if abs(ratio - 1) < 0.01:
        return " A token takes as long as before."
    return f" A token takes {abs(ratio - 1) * 100:.0f} % {'longer' if ratio > 1 else 'less'} (estimated)."


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
        f" passing on takes {found.stall * 100:.0f} % longer than attention."
    )


def learning(exact: bool, alters: bool) -> str:
    """Whether the numbers stay the same."""
    if alters:
        return " It changes what is learned."
    return "" if exact else " Results differ within the precision it gives up."
