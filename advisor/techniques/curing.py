"""Taking away deviations: how a technique restores the run that was meant."""

from __future__ import annotations

from collections.abc import Callable

from advisor.deviation import Deviation
from advisor.run import Run


def cured(run: Run, *causes: str, also: Callable[[Deviation], bool] | None = None) -> Run | None:
    """The run without the deviations that the causes set (or that ``also`` names); ``None`` where there is none of them."""

    def gone(deviation: Deviation) -> bool:
        return deviation.cause in causes or (also is not None and also(deviation))

    return run.without(lambda d: not gone(d)) if any(gone(d) for d in run.deviations) else None


def ineffective(field: str) -> Callable[[Deviation], bool]:
    """Matches a setting that had no effect."""
    return lambda d: d.kind == "ineffective" and d.field == field


def widened(*fields: str) -> Callable[[Deviation], bool]:
    """Matches a dtype that is wider than written."""
    return lambda d: d.kind == "widened" and d.field in fields


def extra(*parts: str) -> Callable[[Deviation], bool]:
    """Matches a part that is held again."""
    return lambda d: d.kind == "extra-holding" and d.part in parts
