"""Efficiencies: the share of a card's stated rates that training kernels reach, from ``knowledge/efficiency.yaml``.

Each value there names the measured rows behind it. A card of a family without rows gets the default, with a wider range.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from advisor import knowledge
from advisor.cards import Card


class Efficiency(Struct, frozen=True):
    """Shares of the stated rates, seconds a kernel launch, and the relative range of a step's time."""

    dense: float
    attention: float
    attention_old: float  # FlashAttention 2, which does not use what Hopper and Blackwell added
    narrow: float  # of the dense share, in 8 and 4 bits: scaling, and shapes that are too small for the rate
    memory: float
    launch_seconds: float
    link: float
    bus: float
    range: float
    measured: bool
    why: str


@cache
def _table() -> dict[str, Efficiency]:
    data = knowledge.load_yaml("efficiency.yaml")
    return {
        name: Efficiency(
            e["dense"],
            e["attention"],
            e["flash_2"],
            e["narrow"],
            e["memory"],
            e["launch_us"] * 1e-6,
            e["link"],
            e["bus"],
            e["range"],
            bool(e.get("rows")),
            e["why"],
        )
        for name, e in data["families"].items()
    }


class Shared(Struct, frozen=True):
    """Calibrated values that hold for all cards; what each means is said in the table."""

    hidden: float
    wide_stream: float
    compiled: float
    compiled_loss: float
    product_traffic: float
    step_seconds: float
    expert_seconds: float


@cache
def shared() -> Shared:
    """The values of the table's ``shared`` section."""
    return Shared(**{name: entry["value"] for name, entry in knowledge.load_yaml("efficiency.yaml")["shared"].items()})


def family(card: Card | None) -> str:
    """The family of a card in the table."""
    if card is None:
        return "default"
    if card.vendor.lower() != "nvidia":
        return "other-makers"
    sm = card.sm or 0
    if card.consumer:
        return "consumer"
    if sm == 80:
        return "sm80"
    if sm in (86, 89):
        return "sm86-89"
    if sm == 90:
        return "sm90"
    return "sm100" if 100 <= sm < 120 else "default"


def efficiency(card: Card | None) -> Efficiency:
    """The shares for a card."""
    return _table().get(family(card)) or _table()["default"]
