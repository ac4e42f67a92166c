"""The fewest cards of the same kind that would hold a run, with which changes, and what that costs in time.

A count is a divisor of the cards that there are. Tensor and pipeline groups stay as they are, the ranks beside them become fewer: first the
replicas, then the pieces. Samples of a step stay the same, by more accumulation. Every count is searched and estimated like a run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.job import JobError
from advisor.planner.constraints import Constraints
from advisor.planner.least import least
from advisor.planner.lines import changed_lines
from advisor.planner.measuring import Bench, Candidate
from advisor.planner.searching import LINK_BOUND
from advisor.planner.stages import searched
from advisor.planner.stepping import title
from advisor.report import Plan
from advisor.run import Run


class Fewer(Struct, frozen=True):
    """``cards`` of the ``of`` there are hold the run with ``changes``; ``ratio``: time of a step of as many samples, over the time on all cards."""

    cards: int
    of: int
    changes: tuple[str, ...]
    ratio: float
    used_bytes: int
    usable_bytes: int
    tightly: bool  # the middle of the estimate fits, its range may not
    exact: bool
    lines: Mapping[str, tuple[str, ...]]
    run: Run

    @property
    def card_hours(self) -> float:
        """Card-hours of the run, over those on all cards."""
        return self.ratio * self.cards / self.of

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        from advisor.units import gib

        return {
            "cards": self.cards, "of": self.of, "changes": [{"technique": name, "title": title(name)} for name in self.changes],
            "step_time_ratio": round(self.ratio, 3), "card_hours_ratio": round(self.card_hours, 3), "used_gib": gib(self.used_bytes),
            "usable_gib": gib(self.usable_bytes), "tightly": self.tightly, "exact": self.exact,
            "settings": {name: list(lines) for name, lines in self.lines.items()},
        }  # fmt: skip


def fewer_cards(run: Run, plan: Plan, *, allow: Constraints | None = None, margin_bytes: int | None = None) -> tuple[Fewer, ...] | None:
    """The fewest cards that would do, without learning anything else; where those wait for the host's link, also the fewest that need not.

    Empty where no fewer would do; ``None`` where the question has no answer: one card, a run that no plan makes fit on the cards that are there,
    cards of several kinds, or figures of the layout that do not agree. ``plan``: of the run; times are compared with the run that it ends on.
    """
    hardware, world = run.job.hardware, run.world
    there = (hardware.gpus_per_node or 1) * (hardware.nodes or 1)
    if not plan.fits or world < 2 or world != there or hardware.cards or run.usable is None or any(step.tier == "hardware" for step in plan.steps):
        return None
    whole = next((step.run for step in reversed(plan.steps) if step.run is not None and step.estimated), run)
    constraints = replace(allow or Constraints(), keep_hardware=True)
    counts = [n for n in range(1, world) if world % n == 0]
    first = _fewest(run, whole, counts, constraints, margin_bytes)
    if first is None or not LINK_BOUND & set(first.changes):
        return () if first is None else (first,)
    unmoved = replace(constraints, exclude=constraints.exclude | LINK_BOUND)
    second = _fewest(run, whole, [n for n in counts if n > first.cards], unmoved, margin_bytes)
    return (first,) if second is None else (first, second)


def _fewest(run: Run, whole: Run, counts: Sequence[int], constraints: Constraints, margin_bytes: int | None) -> Fewer | None:
    for count in counts:
        on = on_fewer(run, count)
        found = _held(on, constraints, margin_bytes) if on is not None else None
        if found is not None:
            return _of(found[0], count, run, whole, tightly=found[1])
    return None


def on_fewer(run: Run, count: int) -> Run | None:
    """The run on ``count`` cards, its samples a step kept; ``None`` where its groups do not go into so many, or its nodes are not filled."""
    p, b, hardware = run.job.parallel, run.job.batch, run.job.hardware
    groups = (p.tensor or 1) * (p.pipeline or 1)
    shard, replicate = p.shard or 1, p.replicate or 1
    per_node = min(hardware.gpus_per_node or 1, count)
    ranks, rest = divmod(count, groups)
    if rest or not ranks or ranks % (p.context or 1) or ranks % (p.expert or 1) or count % per_node:
        return None
    pieces = min(shard, ranks)
    if ranks % pieces or shard % pieces:
        return None
    alone = count == 1 and p.strategy in ("ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3")
    try:
        return run.but(
            parallel={"shard": pieces, "replicate": ranks // pieces, **({"strategy": "none"} if alone and p.strategy == "ddp" else {})},
            hardware={"gpus_per_node": per_node, "nodes": count // per_node},
            batch={"gradient_accumulation": (b.gradient_accumulation or 1) * (shard * replicate) // ranks},
        )
    except JobError:
        return None


def _held(run: Run, constraints: Constraints, margin_bytes: int | None) -> tuple[Candidate, bool] | None:
    """The cheapest set with which it fits, and whether only the middle of the estimate does."""
    bench = Bench(run, lambda tried: tried.usable[0] if tried.usable is not None else None, margin_bytes, constraints)
    start = bench.measure(())
    if start is None:
        return None
    if bench.fits(start):
        return start, False
    found = searched(bench, start, start, altering=0)
    if not found.sets:
        return None
    return least(bench, found.sets[0], found.measure, frozenset(), tightly=found.tightly), found.tightly


def _of(c: Candidate, count: int, run: Run, whole: Run, *, tightly: bool) -> Fewer | None:
    from advisor.speed import step_time

    before = step_time(whole).seconds_per_token
    if before <= 0 or c.capacity_bytes is None:
        return None
    return Fewer(
        cards=count,
        of=run.world,
        changes=tuple(name for name, _ in c.changes),
        ratio=c.seconds_per_token / before,
        used_bytes=c.used_bytes,
        usable_bytes=c.capacity_bytes,
        tightly=tightly,
        exact=c.exact,
        lines=changed_lines(run, c.run),
        run=c.run,
    )
