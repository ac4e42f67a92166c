"""A candidate: a run with some techniques applied, and what it needs. Every set of techniques is measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.arithmetic import CannotEstimate, estimate
from advisor.job import JobError
from advisor.ledger import Ledger
from advisor.planner.constraints import CUTTING, ORDER, Constraints, altered
from advisor.planner.excluding import brings_along
from advisor.planner.storage import MOST_HOST_GIB, host_of_node
from advisor.run import Run
from advisor.speed import step_time
from advisor.techniques import NotApplicable, Technique, all_techniques
from advisor.units import GIB

MOST_MARGIN = 0.1
FREE = frozenset({"copies", "fallback"})
Change = tuple[str, int]  # a technique and how many times it is applied
Changes = tuple[Change, ...]


class Candidate(Struct, frozen=True, dict=True):
    """``changes`` in the order in which they were applied; bytes of one card; seconds of one token of the whole job."""

    changes: Changes
    run: Run
    ledger: Ledger
    peak_bytes: int  # max_allocated
    used_bytes: int  # max_allocated and what is outside of torch: without the allocator's cache, which gives way at the edge
    shown_bytes: int  # what the device shows, the cache included
    capacity_bytes: int | None
    seconds_per_token: float
    altered: int  # how much of what is learned changes: advisor.planner.constraints.ALTERS, summed
    exact: bool
    laid_out: bool = False  # a layout chosen as a whole: its changes made one after the other come to another run

    @property
    def alters_learning(self) -> bool:
        """Whether anything else is learned."""
        return self.altered > 0

    @cached_property
    def error_bytes(self) -> int:
        """From the expected to the high end of ``max_allocated``: the range costs several estimates, so it is asked only of what may fit."""
        allocated = self.ledger.totals()["max_allocated"]
        return allocated.high - allocated.expected

    @cached_property
    def ids(self) -> frozenset[str]:
        """The techniques that were applied."""
        return frozenset(i for i, _ in self.changes)


class Bench(Struct):
    """Measures candidates from one start, each set once. ``margin_bytes`` None: the estimate's own error."""

    start: Run
    capacity: Callable[[Run], int | None]
    margin_bytes: int | None
    constraints: Constraints
    budget: int = 260  # estimates; about 1 ms each
    spent: int = 0
    _known: dict[Changes, Candidate | None] = field(default_factory=dict)
    _made: dict[Changes, tuple[Run, bool, int] | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def may_fit(self, c: Candidate) -> bool:
        """Whether the expected figure fits with the margin asked for: cheap, and necessary for :meth:`fits`."""
        if c.capacity_bytes is None or max(c.used_bytes + (self.margin_bytes or 0), c.shown_bytes) > c.capacity_bytes:
            return False
        return self.housed(c) and not self.hasty(c)

    def housed(self, c: Candidate) -> bool:
        """Whether what is moved to the host fits there, for all ranks of a node; where the host is not known, whether any machine has so much.

        What the job itself holds there, as it was written, is not doubted.
        """
        if not c.ledger.host_peak():
            return True
        hardware = c.run.job.hardware
        need = host_of_node(c.ledger, min(c.run.world, hardware.gpus_per_node or 1))
        if hardware.host_memory_gib is not None:
            return need <= hardware.host_memory_gib * GIB
        if need <= MOST_HOST_GIB * GIB:
            return True
        start = self.measure(())
        return start is not None and need <= host_of_node(start.ledger, min(start.run.world, start.run.job.hardware.gpus_per_node or 1))

    def hasty(self, c: Candidate) -> bool:
        """Whether it cuts the computation over a bus, where every block waits for it, before everything is recomputed that can be."""
        card = c.run.card
        return bool(CUTTING & c.ids) and card is not None and not card.link_bytes and c.run.job.activations.checkpointing != "full"

    def fits(self, c: Candidate, *, tightly: bool = False) -> bool:
        """Whether it fits with the margin asked for, or, where none was, with the estimate's own error; ``tightly``: its middle.

        The error is the high end of the estimate, and at most :data:`MOST_MARGIN` of the card: a wider range comes from facts that are
        not known, which a question settles better than a plan that is cut to the worst of them.
        """
        if c.capacity_bytes is None or not self.may_fit(c):
            return False
        most = round(MOST_MARGIN * c.capacity_bytes)
        if tightly or self.margin_bytes is not None or c.used_bytes + most <= c.capacity_bytes:
            return True
        return not c.ledger.may_allocate(c.peak_bytes + c.capacity_bytes - c.used_bytes)  # `most` is more than what is left: the error decides

    def measured(self) -> list[Candidate]:
        """All candidates measured so far."""
        return [c for c in self._known.values() if c is not None]

    def measure(self, changes: Sequence[Change]) -> Candidate | None:
        """The candidate of a set of changes, applied in tier order; ``None`` where one of them is not applicable then."""
        key = ordered(changes)
        if key not in self._known:
            self._known[key] = self._new(key)
        return self._known[key]

    def _new(self, key: Changes) -> Candidate | None:
        applied = self._applied(key) or self._opened(key)
        if applied is None or (self.constraints.keep_exact and not applied[1]):
            return None
        return self._measured(key, *applied)

    def usable(self, changes: Sequence[Change]) -> int | None:
        """Usable bytes of the card that a set of changes ends on, without an estimate; ``None`` where one of them is not applicable."""
        key = ordered(changes)
        applied = self._applied(key) or self._opened(key)
        return None if applied is None else self.capacity(applied[0])

    def _applied(self, key: Changes) -> tuple[Run, bool, int] | None:
        """The run with the changes made, whether numbers stay exact, and how much else is learned; each step of it is made once, and not measured."""
        if not key:
            return self.start, True, 0
        if key not in self._made:
            name, times = key[-1]
            at_once = times == 1 or all_techniques()[name].often is not None
            before = self._applied(key[:-1] if at_once else (*key[:-1], (name, times - 1)))
            self._made[key] = self._one_more(before, name, times if at_once else 1) if before is not None else None
        return self._made[key]

    def _one_more(self, before: tuple[Run, bool, int], name: str, times: int) -> tuple[Run, bool, int] | None:
        after = self.apply(name, before[0], times)
        if after is None:
            return None
        flags = all_techniques()[name].judged(before[0], after)
        alters = altered(name, before[0].job.method.kind) if flags.alters_learning else 0
        return after, before[1] and flags.exact, before[2] + alters

    def _opened(self, key: Changes) -> tuple[Run, bool, int] | None:
        """With what is free and what only the rest of the set makes applicable made last: fp16 needs the fp32 weights that FSDP holds."""
        late = next((c for c in key if c[1] == 1 and technique_of(c).tier in FREE and self._applied((c,)) is None), None)
        before = self._applied(tuple(c for c in key if c != late)) if late is not None and len(key) > 1 else None
        return self._one_more(before, late[0], 1) if before is not None and late is not None else None

    def of_run(self, changes: Changes, run: Run, base: Candidate) -> Candidate | None:
        """A run that was made otherwise (a layout), measured as the outcome of ``changes``; numbers stay exact where ``base``'s were."""
        found = self._measured(changes, run, base.exact, base.altered)
        return replace(found, laid_out=True) if found is not None else None

    def apply(self, name: str, run: Run, times: int = 1) -> Run | None:
        """The changed run; the reason why not is kept."""
        technique = all_techniques()[name]
        try:
            after = technique.often(run, times) if technique.often is not None else technique.apply(run)
        except JobError as error:
            self.refused.setdefault(name, str(error))
            return None
        if isinstance(after, NotApplicable):
            self.refused.setdefault(name, after.reason)
            return None
        if (brought := brings_along(run, after, self.constraints.exclude)) is not None:
            self.refused.setdefault(name, f"it brings {brought} along, which is out of the question")
            return None
        return after

    def _measured(self, key: Changes, run: Run, exact: bool, alters: int) -> Candidate | None:
        self.spent += 1
        try:
            ledger = estimate(run)
        except CannotEstimate:
            return None
        shown = ledger.expected_totals()["device_used"].expected
        used = shown - ledger.outside("allocator")
        time = step_time(run)
        return Candidate(key, run, ledger, ledger.peak().bytes, used, shown, self.capacity(run), time.seconds_per_token, alters, exact)


def ordered(changes: Sequence[Change]) -> Changes:
    """Changes in the order of application: by tier, then as the techniques are registered."""
    rank = _ranks()
    return tuple(sorted(changes, key=lambda c: rank[c[0]]))


@cache
def _ranks() -> dict[str, tuple[int, int]]:
    return {name: (ORDER[technique.tier], index) for index, (name, technique) in enumerate(all_techniques().items())}


def technique_of(change: Change) -> Technique:
    """The technique of a change."""
    return all_techniques()[change[0]]
