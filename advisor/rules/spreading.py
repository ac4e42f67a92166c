"""Layers spread over the cards of one process: accelerate's device map. Each card holds other layers, none holds a copy."""

from __future__ import annotations

import re

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.rules import counters
from advisor.rules.situation import sharded
from advisor.run import Run
from advisor.units import GIB, MIB, show

MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate utils/modeling.py infer_auto_device_map, get_balanced_memory
_PRINTED = pattern(r"hf_device_map|[Dd]evice[ _]map\b[^\n]{0,40}[{(]")
_PLACED = pattern(r"(?:->|:)\s*(?:'?cuda:)?(\d)\b")
_PROCESSES = pattern(
    r"\btorchrun\b|nproc[-_]per[-_]node|--num[-_]processes[ =]+(?:[2-9]|\d\d)|\bdeepspeed\b|\bLOCAL_RANK\b|world_size\W{1,3}(?:[2-9]|\d\d)|mp\.spawn",
    re.IGNORECASE,
)
_OF_CARD = pattern(r"\b(?:cuda|gpu|card|device)[: ]?(\d)\W{1,3}(\d{1,3}(?:\.\d{1,2})?)\s?(GiB|GB|MiB|MB)\b", re.IGNORECASE)
_LOADED = pattern(r"load|from_pretrained|device[ _]map|before (?:the )?(?:first|training|step)", re.IGNORECASE)
FILLED = 0.85  # of a card: what is left has to hold activations, gradients and states of the layers there


def by_device_map(run: Run, evidence: Evidence) -> str | None:
    """Whether one process spreads the layers over its cards: a map is asked for or printed, and nothing starts a process for each card."""
    if sharded(run):
        return None
    if run.job.parallel.device_map:
        return "the layers are spread over the cards by a device map"
    if any(_PROCESSES.search(line.text) for line in evidence.lines) or any((f.rank or 0) > 0 for f in evidence.failures):
        return None
    for line in evidence.lines:
        if _PRINTED.search(line.text) and len(set(_PLACED.findall(line.text))) > 1:
            return f"the layers are spread over the cards by a device map ({line.where})"
    for where, key, value in evidence.seen_keys:
        if key.rpartition(".")[2] == "device_map" and str(value).strip("'\"") in MAPS:
            return f"device_map={value} spreads the layers over the cards of one process ({where})"
    return None


def filled(evidence: Evidence) -> str | None:
    """A card that a log shows nearly full right after loading, in a line that gives each card's figure."""
    capacity = counters.of(evidence).capacity
    if capacity is None:
        return None
    for line in evidence.lines:
        if not _LOADED.search(line.text) or "ried to allocate" in line.text:
            continue
        for card, number, unit in _OF_CARD.findall(line.text):
            held = round(float(number) * (GIB if unit[0] in "Gg" else MIB))
            if FILLED * capacity <= held <= capacity:
                return f"after loading, card {card} holds {show(held)} of {show(capacity)} ({line.where})"
    return None
