"""Cards: what ``knowledge/gpus.yaml`` knows of each, and how a name finds its card.

``marketed_gb`` is the name on the box, ``smi_bytes`` what nvidia-smi prints as total, ``torch_bytes`` what cudaMemGetInfo (and so torch
and vLLM) reports, which is smaller. A value that was not re-read at its source is listed in ``unverified`` and shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from advisor import knowledge
from advisor.spoken import with_article
from advisor.units import GIB, MIB

_MAKERS = re.compile(r"\b(nvidia|amd|geforce|tesla|quadro|instinct|intel|generation)\b")
_SIZE = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3})?) ?gi?b?\b", re.IGNORECASE)
_GRADES = ("ti", "super")  # a 5070 Ti is another card than a 5070
_SAME = 0.07  # a 16 GB card shows 15 GiB: what drivers and units take off is no other card


class Card(Struct, frozen=True):
    """A card of the catalogue (or one that the user describes: only ``name`` and ``marketed_gb`` are known then)."""

    id: str
    name: str
    vendor: str
    marketed_gb: float
    smi_bytes: int | None
    torch_bytes: int | None
    bandwidth_bytes: float | None  # bytes a second
    flops: Mapping[str, float | None]  # dense FLOP/s by dtype: bf16, fp16, fp8, ...
    link_bytes: float | None  # NVLink or alike, bytes a second, both directions together
    bus_bytes: float | None  # PCIe, one direction, bytes a second
    capability: str | None  # "8.0"
    supports: Mapping[str, bool | None]
    sources: Mapping[str, str]
    unverified: frozenset[str]
    consumer: bool
    aliases: tuple[str, ...] = ()

    def usable(self) -> tuple[int, str]:
        """Bytes that a process can use, context included, and why this figure.

        What torch can see where the catalogue knows it; else what nvidia-smi prints, less the driver's share as other cards show it.
        """
        if self.torch_bytes is not None:
            return self.torch_bytes, f"what torch reports as total on {with_article(self.name)}"
        if self.smi_bytes is not None:
            return round(
                self.smi_bytes * _torch_share()
            ), f"what nvidia-smi prints for {with_article(self.name)}, less the driver's share as seen on other cards"
        return round(
            self.marketed_gb * 1e9 * _torch_share()
        ), f"the marketed {self.marketed_gb:g} GB of {with_article(self.name)} read as decimal, less the driver's share"

    @property
    def sm(self) -> int | None:
        """Compute capability as a number: 80, 89, 90, 120."""
        if self.capability is None:
            return None
        major, _, minor = self.capability.partition(".")
        return int(major) * 10 + int(minor or 0)


@cache
def _torch_share() -> float:
    """torch's total over nvidia-smi's: the median over the cards where both are known."""
    shares = sorted(c["torch_total_bytes"] / c["smi_total_bytes"] for c in _entries() if c.get("torch_total_bytes") and c.get("smi_total_bytes"))
    return float(shares[len(shares) // 2]) if shares else 1.0


def _entries() -> list[dict[str, Any]]:
    return list(knowledge.load_yaml("gpus.yaml")["cards"])


@cache
def catalogue() -> Mapping[str, Card]:
    """All cards by id."""
    return {entry["id"]: _card(entry) for entry in _entries()}


def _card(entry: Mapping[str, Any]) -> Card:
    def scaled(key: str, factor: float) -> float | None:
        value = entry.get(key)
        return None if value is None else value * factor

    return Card(
        id=entry["id"],
        name=entry["name"],
        vendor=entry["vendor"],
        marketed_gb=float(entry["marketed_gb"]),
        smi_bytes=entry.get("smi_total_bytes"),
        torch_bytes=entry.get("torch_total_bytes"),
        bandwidth_bytes=scaled("bandwidth_gb_s", 1e9),
        flops={dtype: None if rate is None else rate * 1e12 for dtype, rate in (entry.get("tflops_dense") or {}).items()},
        link_bytes=scaled("link_gb_s", 1e9),
        bus_bytes=scaled("bus_gb_s", 1e9),
        capability=entry.get("capability"),
        supports=entry.get("supports") or {},
        sources=entry.get("sources") or {},
        unverified=frozenset(entry.get("unverified") or ()),
        consumer=bool(entry.get("consumer")),
        aliases=tuple(entry.get("aliases") or ()),
    )


def key_of(text: str) -> str:
    """A name without what cards' names differ in by source: ``NVIDIA A100-SXM4-80GB`` and ``a100 sxm4 80 gb`` agree."""
    return _parted(text)[0]


@lru_cache(maxsize=512)
def _parted(text: str) -> tuple[str, frozenset[int]]:
    """The key of a name, and the places in it that are inside a number: ``h1000`` must not be cut after its second zero, ``H100 80GB`` may."""
    lowered = _MAKERS.sub(" ", text[:200].lower())
    key, inside, last = "", set(), ""
    for sign in lowered:
        if sign.isascii() and sign.isalnum():
            if last.isdecimal() and sign.isdecimal():
                inside.add(len(key))
            key += sign
        last = sign
    return key, frozenset(inside)


def _holds(name: tuple[str, frozenset[int]], part: tuple[str, frozenset[int]]) -> bool:
    """Whether a name holds another one without cutting through a number."""
    key, inside = name
    start = key.find(part[0]) if part[0] else -1
    while start >= 0:
        end = start + len(part[0])
        if start not in inside and end not in inside and not (key[end - 1].isdecimal() and key.startswith(_GRADES, end)):
            return True
        start = key.find(part[0], start + 1)
    return False


@cache
def _names() -> Mapping[str, tuple[tuple[str, frozenset[int]], ...]]:
    return {card.id: tuple(map(_parted, (card.id, card.name, *card.aliases))) for card in catalogue().values()}


@cache
def _by_key() -> Mapping[str, str]:
    keys: dict[str, str] = {}
    for card in catalogue().values():
        for name in (card.id, card.name, *card.aliases):
            keys.setdefault(key_of(name), card.id)
    return keys


def find(name: str, total_bytes: int | None = None) -> Card | None:
    """The card of a name as nvidia-smi, a cloud or a person writes it; the total settles which of several sizes is meant."""
    found = _by_key().get(key_of(name))
    if found is not None and total_bytes is None:
        return catalogue()[found]
    asked, sizes = _parted(name), {float(gb) for gb in _SIZE.findall(name[:200])}
    near = [
        c
        for c in catalogue().values()
        if len(asked[0]) >= 2
        and (not sizes or any(abs(c.marketed_gb - gb) <= _SAME * c.marketed_gb for gb in sizes))
        and any(_holds(asked, k) or _holds(k, asked) for k in _names()[c.id])
    ]
    if total_bytes is not None:
        fitting = [c for c in near if _matches_total(c, total_bytes)]
        if fitting:
            return min(fitting, key=lambda c: abs((c.torch_bytes or c.smi_bytes or 0) - total_bytes))
    if found is not None:
        return catalogue()[found]
    return near[0] if len(near) == 1 else None


def _matches_total(card: Card, total_bytes: int) -> bool:
    known = [b for b in (card.torch_bytes, card.smi_bytes) if b] or [round(card.marketed_gb * GIB)]
    return any(abs(b - total_bytes) <= max(512 * MIB, 0.03 * b) for b in known)


def other_sizes(card_id: str) -> tuple[int, ...]:
    """GB of the cards of the same name that have another memory: an A100 is made with 40 and 80; empty where there is one size."""
    own = catalogue()[card_id]
    family = card_id.partition("-")[0]
    return tuple(sorted({round(c.marketed_gb) for c in catalogue().values() if c.id.partition("-")[0] == family} - {round(own.marketed_gb)}))


def by_total(total_bytes: int) -> tuple[Card, ...]:
    """Cards whose total (as torch or nvidia-smi prints it) is within 1.5 % of a printed capacity, nearest first.

    Drivers differ by some tenths of a percent, so cards within half a percent count as equally near: bus variants come after the module.
    """

    def distance(card: Card) -> float:
        return min((abs(b - total_bytes) / total_bytes for b in (card.torch_bytes, card.smi_bytes) if b), default=1.0)

    near = (c for c in catalogue().values() if distance(c) <= 0.015)
    return tuple(sorted(near, key=lambda c: (round(distance(c) * 200), "pcie" in c.id, distance(c))))
