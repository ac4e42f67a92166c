"""A parallel layout as the plan's step: tensor, context and pipeline degrees chosen together, for the node and its links."""

from __future__ import annotations

from advisor.planner.constraints import NARROWING
from advisor.planner.layouts import LAYOUTS, Layout, layouts
from advisor.planner.measuring import Bench, Candidate, Change, ordered
from advisor.planner.searching import cost

ASKED = 12  # layouts whose range is asked for, fastest first
KEPT = 2
ESTIMATES = 240  # about 2 ms each


def laid_out(bench: Bench, base: Candidate, start: Candidate, *, tightly: bool = False) -> list[Candidate]:
    """Fitting layouts on top of ``base``, cheapest first; empty where the framework has none, the job has one rank, or none fits.

    Layouts keep the GPUs and the samples of a step; a tensor group stays inside a node, and the time of each counts its links.
    """
    if base.run.world < 2 or (base.run.job.framework.name or "custom") not in LAYOUTS or base.capacity_bytes is None:
        return []
    found: list[Candidate] = []
    asked = 0
    for layout in layouts(base.run, capacity_bytes=base.capacity_bytes, most=ESTIMATES):
        changes = _changes(base, layout)
        if layout.fits is False or asked == ASKED:
            break
        if not changes or not _permitted(bench, changes):
            continue
        candidate = bench.of_run(ordered((*base.changes, *changes)), layout.run, base)
        if candidate is None or bench.hasty(candidate):
            continue
        asked += 1
        if bench.fits(candidate, tightly=tightly):
            found.append(_as_exact(bench, candidate, base, layout, start, tightly=tightly))
            if len(found) == KEPT:
                break
    return sorted(found, key=lambda c: cost(c, start))


def _as_exact(bench: Bench, c: Candidate, base: Candidate, layout: Layout, start: Candidate, *, tightly: bool) -> Candidate:
    """The layout without what is free but less exact, where it fits so and takes no longer than the run as it is."""
    plain = bench.measure(tuple(change for change in base.changes if change[0] not in NARROWING))
    if plain is None or plain.exact <= base.exact:
        return c
    names = {name for name, _ in base.changes}
    again = bench.of_run(ordered((*plain.changes, *(change for change in c.changes if change[0] not in names))), plain.run.but(**layout.settings), plain)
    return again if again is not None and bench.fits(again, tightly=tightly) and cost(again, start) <= cost(c, start) else c


def _changes(base: Candidate, layout: Layout) -> list[Change]:
    """Which techniques lead from the run to the layout, and how often each doubles its degree; empty where a degree shrinks."""
    p, a = base.run.job.parallel, base.run.job.activations
    out: list[Change] = []
    for name, now, then in (
        ("tensor-parallel", p.tensor or 1, layout.tensor),
        ("context-parallel", p.context or 1, layout.context),
        ("pipeline-parallel", p.pipeline or 1, layout.pipeline),
        ("expert-parallel", p.expert or 1, layout.expert),
    ):
        if then < now or then % now:
            return []
        if then > now:
            out.append((name, (then // now).bit_length() - 1))
    if layout.checkpointing == "full" and a.checkpointing != "full":
        out.append(("gradient-checkpointing", 1))
    return out


def _permitted(bench: Bench, changes: list[Change]) -> bool:
    from advisor.techniques import all_techniques

    return bench.constraints.within(len(changes)) and all(bench.constraints.permits(all_techniques()[name]) for name, _ in changes)
