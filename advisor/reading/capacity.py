"""Which card it was, from the total capacity that an error prints: inferred where only one card has it, else assumed with the others beside it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor import cards
from advisor.evidence import Backend, Device, Fact, Failure
from advisor.reading.merge import GUESS, PRINTED, PROSE, Ranked
from advisor.reading.pattern import pattern
from advisor.units import GIB, show

_ASKED = pattern(r"--(?:gres|gpus|tres)")
_SIZED, _SIZE = pattern(r"\d{2,3} ?G(?:i?B)?\b"), pattern(r"-\d{1,3}gb$")
_VENDORS: dict[Backend, tuple[str, ...]] = {"cuda": ("nvidia",), "hip": ("amd",), "mps": ("apple",), "xpu": ("intel",), "npu": ("huawei",)}


def card_of_failure(failure: Failure) -> Ranked | None:
    """The card whose total an error prints; a card that the catalogue does not know is described by its memory."""
    total = failure.capacity_bytes
    if total is None or failure.backend not in ("cuda", "hip", "xpu", "npu"):
        return None
    vendors = _VENDORS.get(failure.backend, ())
    found = [card for card in cards.by_total(total) if card.vendor.lower() in vendors]
    text = failure.text[:200]
    if not found:
        value = {"name": f"a card of {show(total)}", "memory_gib": round(total / GIB, 3)}
        return Ranked(
            Fact("hardware.gpu", value, "inferred", failure.where, "the total capacity that the error prints; the catalogue knows no such card", text), GUESS
        )
    if len(found) == 1:
        return Ranked(Fact("hardware.gpu", found[0].id, "inferred", failure.where, f"only this card shows a total of {show(total)}", text), GUESS)
    why = f"one of {len(found)} cards that show a total of {show(total)}"
    return Ranked(Fact("hardware.gpu", found[0].id, "assumed", failure.where, why, text, tuple(card.id for card in found[1:])), GUESS)


def sized(ranked: Sequence[Ranked], failures: Sequence[Failure]) -> list[Ranked]:
    """The facts; a card that a remark or Slurm's option names without its memory is the one of that name whose total the error prints."""
    total = next((f.capacity_bytes for f in failures if f.capacity_bytes is not None), None)
    if total is None:
        return list(ranked)
    out = []
    for item in ranked:
        fact = item.fact
        if (
            fact.field == "hardware.gpu"
            and (item.rank == PROSE or _ASKED.search(fact.text or ""))
            and isinstance(fact.value, str)
            and not _SIZED.search(fact.text or "")
        ):
            found = cards.find(_SIZE.sub("", fact.value), total)
            item = replace(item, fact=replace(fact, value=found.id)) if found is not None else item
        out.append(item)
    return out


def cards_of_devices(devices: tuple[Device, ...]) -> list[Ranked]:
    """The card that a table names, and how many it lists."""
    out: list[Ranked] = []
    named = [
        (device, card) for device in devices if device.name and not device.mig and (card := cards.find(device.name.replace("...", ""), device.total_bytes))
    ]
    if named:
        device, card = named[0]
        out.append(
            Ranked(
                Fact("hardware.gpu", card.id, "read", device.where, text=f"{device.name}" + (f", {show(device.total_bytes)}" if device.total_bytes else "")),
                PRINTED,
            )
        )
    elif (shown := next((d for d in devices if d.name and d.total_bytes and not d.mig), None)) is not None and shown.total_bytes is not None:
        value = {"name": (shown.name or "")[:80], "memory_gib": round(shown.total_bytes / GIB, 3)}
        out.append(Ranked(Fact("hardware.gpu", value, "read", shown.where, "a card that the catalogue does not know, with the memory that is listed"), PRINTED))
    else:
        sized = next((d for d in devices if d.total_bytes and not d.mig), None)
        if sized is not None and sized.total_bytes is not None and (found := cards.by_total(sized.total_bytes)):
            out.append(
                Ranked(
                    Fact(
                        "hardware.gpu", found[0].id, "assumed" if len(found) > 1 else "inferred", sized.where,
                        f"the total of {show(sized.total_bytes)} in the table", alternatives=tuple(c.id for c in found[1:]),
                    ),
                    GUESS,
                )
            )  # fmt: skip
    indices = {d.index for d in devices if d.index is not None and not d.mig}
    if (where := _one_in_use(devices)) is not None:
        out.append(Ranked(Fact("hardware.gpus_per_node", 1, "inferred", where, "the table lists one process, on one card: the other cards are idle"), GUESS))
    elif len(indices) > 1 and indices == set(range(len(indices))):
        out.append(Ranked(Fact("hardware.gpus_per_node", len(indices), "inferred", devices[0].where, "cards that the table lists"), GUESS))
    return out


def _one_in_use(devices: Sequence[Device]) -> str | None:
    """Where the one process of a table with several cards is listed: a card that is listed is not a card that the job uses."""
    if len(devices) < 2 or sum(len(d.processes) for d in devices) != 1:
        return None
    used = next(d for d in devices if d.processes)
    idle = all(d.used_bytes is not None and d.used_bytes < GIB for d in devices if d is not used)
    return used.where if idle and used.used_bytes is not None and used.used_bytes >= GIB else None
