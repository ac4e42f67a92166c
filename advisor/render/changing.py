"""A change of the plan in words: what it saves, what it costs, and where its lines go. The same in every form of a report."""

from __future__ import annotations

from functools import cache

from advisor.report import SAME_TIME, Step
from advisor.units import show

_OWN = "Your training script"


def cost(ratio: float) -> str:
    """A ratio of step times in words."""
    if abs(ratio - 1) < SAME_TIME:
        return "no change in speed"
    return f"takes {ratio - 1:.0%} more time" if ratio > 1 else f"takes {1 - ratio:.0%} less time"


def effects(step: Step) -> list[str]:
    """What a change does beside its sizes: time, results, learning, and whether it fits from here on."""
    facts = [] if step.estimated else ["no estimate"]
    if step.step_time_ratio is not None:
        facts.append(cost(step.step_time_ratio))
    if step.estimated:
        facts.append("same results up to rounding" if step.exact else "results change slightly")
    if step.alters_learning:
        facts.append("what is learned may change")
    if step.fits_after:
        facts.append("fits from here on")
    return facts


def sizes(step: Step, arrow: str = "→") -> str:
    """``39.2 GiB → 26.7 GiB``; empty where it is not estimated."""
    if not step.estimated or step.before_bytes is None or step.after_bytes is None:
        return ""
    return f"{show(step.before_bytes)} {arrow} {show(step.after_bytes)}"


@cache
def place(layer: str) -> str:
    """Where lines of a layer go, as people call it: ``TRL``, ``DeepSpeed``, ``Your training script``."""
    from advisor import knowledge

    if layer in ("script", "custom"):
        return _OWN
    if layer == "shell":
        return "In a shell"
    try:
        title = str(knowledge.load_yaml("frameworks", f"{layer}.yaml").get("title") or layer)
    except knowledge.KnowledgeError:
        title = layer
    return title if title[:2].isupper() or title == layer else title[:1].upper() + title[1:]
