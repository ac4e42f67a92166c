"""Who holds how many bytes, in which layout, when.

A ledger is made of **holdings** and **moments**. A moment is a named point of a phase at which the memory is counted (the loss
within the backward phase, the last layer's recomputation, ...); a holding names the moments at which it is alive. The peak is
the maximum over moments of the sum of what lives then, so the parts at the peak add up to the peak by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol

from msgspec import Struct, field

Kind = Literal["estimated", "probed", "measured"]
DeviceName = Literal["gpu", "host", "nvme"]
Need = Literal["needed", "replaceable", "avoidable"]

PHASES = ("load", "rollout", "sync", "forward", "loss", "backward", "step", "eval", "save", "resume", "merge")
PARTS = (
    "weights", "gradients", "optimizer", "activations", "logits", "attention", "communication", "dequantised", "decode-cache",
    "reference", "reward", "critic", "rollout-weights", "rollout-cache", "rollout-graphs", "workspace", "unattributed",
    "context", "allocator",
)  # fmt: skip
MADE_ANEW = frozenset({"widths", "highest"})  # of a ledger: how its ranges are worked out
OUTSIDE_ALLOCATED = frozenset({"context", "allocator"})  # parts that torch.cuda.memory_allocated does not count


class Moment(Struct, frozen=True):
    """A point of the step at which memory is counted: ``Moment("backward.first-block", "backward")``."""

    id: str
    phase: str


class Holding(Struct, frozen=True):
    """Bytes that one part holds for some moments on one rank.

    ``formula`` is a constant template in words (``micro_batch x seq_len x vocab x 4``) and ``values`` the numbers of this run, so
    that building a holding costs no formatting: :func:`explain` puts them together when someone opens it. ``copy_of`` names the
    holding that has the same values; ``need`` says whether that copy is needed, replaceable or avoidable.
    """

    part: str
    name: str
    bytes: int
    moments: frozenset[str]
    formula: str
    values: Mapping[str, Any]
    source: str
    dtype: str | None = None
    layout: str = "dense"
    device: DeviceName = "gpu"
    copy_of: str | None = None
    need: Need | None = None
    error: str | None = None  # the known error of the formula, in words

    def to_json(self) -> dict[str, Any]:
        """The contract's form."""
        return {
            "part": self.part, "name": self.name, "bytes": self.bytes, "dtype": self.dtype, "layout": self.layout,
            "device": self.device, "copy_of": self.copy_of, "need": self.need, "formula": self.formula,
            "values": dict(self.values), "source": self.source, "error": self.error,
        }  # fmt: skip


def explain(holding: Holding) -> str:
    """The formula with this run's numbers put in: ``micro_batch (4) x seq_len (2,048) x vocab (32,000) x 4``."""
    text = holding.formula
    for name in sorted(holding.values, key=len, reverse=True):
        value = holding.values[name]
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        text = _put_in(text, name, shown)
    return text


def _put_in(text: str, name: str, shown: str) -> str:
    out, start = [], 0
    while (at := text.find(name, start)) >= 0:
        before = text[at - 1] if at else " "
        end = at + len(name)
        after = text[end] if end < len(text) else " "
        whole = not (before.isalnum() or before == "_")
        whole = whole and not (after.isalnum() or after == "_")
        out.append(text[start:end] + (f" ({shown})" if whole else ""))
        start = end
    return "".join(out) + text[start:]


class Interval(Struct, frozen=True):
    """A figure with its range, bytes."""

    low: int
    expected: int
    high: int

    def to_json(self) -> dict[str, int]:
        """The contract's form."""
        return {"low": self.low, "expected": self.expected, "high": self.high}


class Peak(Struct, frozen=True):
    """The largest moment and what is alive in it."""

    moment: Moment
    bytes: int
    holdings: tuple[Holding, ...]

    @property
    def phase(self) -> str:
        """The phase of the largest moment."""
        return self.moment.phase


class Highest(Protocol):
    """Answers for a ledger's ``max_allocated`` whether its high end is above so many bytes."""

    def over(self, ledger: Ledger, limit: int) -> bool:
        """Whether it is."""


class Ledger(Struct, frozen=True, dict=True):
    """The holdings of one rank. Three totals that are never mixed, and the host's.

    ``max_allocated``: tensors that the allocator handed out (torch.cuda.max_memory_allocated). ``max_reserved``: with the
    allocator's cache. ``device_used``: with the context and other libraries (what nvidia-smi shows for the process).
    """

    kind: Kind
    holdings: tuple[Holding, ...]
    moments: tuple[Moment, ...]
    rank: str = "max"
    software: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    widths: Callable[[Ledger], dict[str, Interval]] | None = None
    highest: Highest | None = None  # the high end of those widths for ``max_allocated``, in steps

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same; ``widths`` and ``highest`` are made anew for each."""
        return isinstance(other, Ledger) and all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__ if name not in MADE_ANEW)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    def allocated_by_moment(self) -> dict[str, int]:
        """Bytes of ``max_allocated`` at each moment."""
        if "moments" not in self._cache:
            sums = dict.fromkeys((m.id for m in self.moments), 0)
            for h in self.holdings:
                if h.device == "gpu" and h.part not in OUTSIDE_ALLOCATED:
                    for moment in h.moments:
                        sums[moment] += h.bytes
            self._cache["moments"] = sums
        return dict(self._cache["moments"])

    def peak(self, phases: Iterable[str] | None = None) -> Peak:
        """The largest moment (of the given phases), by allocated bytes; its holdings add up to its bytes."""
        wanted = None if phases is None else frozenset(phases)
        sums = self.allocated_by_moment()
        candidates = [m for m in self.moments if wanted is None or m.phase in wanted]
        if not candidates:
            return Peak(Moment("none", "unknown"), 0, ())
        top = max(candidates, key=lambda m: sums[m.id])
        return Peak(top, sums[top.id], self.alive(top.id))

    def alive(self, moment: str) -> tuple[Holding, ...]:
        """GPU holdings counted in ``max_allocated`` at a moment, largest first."""
        found = (h for h in self.holdings if moment in h.moments and h.device == "gpu" and h.part not in OUTSIDE_ALLOCATED)
        return tuple(sorted(found, key=lambda h: -h.bytes))

    def at(self, phase: str) -> int:
        """The largest allocated bytes within a phase; 0 where the job has no such phase."""
        return self._by_phase().get(phase, 0)

    def phases(self) -> dict[str, int]:
        """Allocated bytes of each phase that the job has."""
        largest = self._by_phase()
        return {phase: largest[phase] for phase in PHASES if phase in largest}

    def _by_phase(self) -> dict[str, int]:
        sums = self.allocated_by_moment()
        largest: dict[str, int] = {}
        for moment in self.moments:
            largest[moment.phase] = max(sums[moment.id], largest.get(moment.phase, 0))
        return largest

    def by_part(self, moment: str | None = None) -> dict[str, int]:
        """Bytes by part at a moment (the peak), in the fixed order of :data:`PARTS`, zero parts left out."""
        sums: dict[str, int] = {}
        for holding in self.alive(moment or self.peak().moment.id):
            sums[holding.part] = sums.get(holding.part, 0) + holding.bytes
        return {part: sums[part] for part in PARTS if sums.get(part)}

    def copies(self) -> tuple[Holding, ...]:
        """GPU holdings that have the values of another holding."""
        return tuple(h for h in self.holdings if h.copy_of is not None and h.device == "gpu" and h.bytes)

    def outside(self, part: str) -> int:
        """Bytes of ``context`` or ``allocator``."""
        return sum(h.bytes for h in self.holdings if h.part == part and h.device == "gpu")

    def totals(self) -> dict[str, Interval]:
        """``max_allocated``, ``max_reserved``, ``device_used``, ``host``: each with low, expected, high."""
        if "totals" not in self._cache:
            self._cache["totals"] = self.widths(self) if self.widths else self.expected_totals()
        totals: dict[str, Interval] = self._cache["totals"]
        return totals

    def may_allocate(self, limit: int) -> bool:
        """Whether the high end of ``max_allocated`` is above ``limit`` bytes: as :meth:`totals` has it, with less work where no range is known yet."""
        if self.highest is None or self.widths is None or "totals" in self._cache:
            return self.totals()["max_allocated"].high > limit
        return self.highest.over(self, limit)

    def expected_totals(self) -> dict[str, Interval]:
        """The totals without a range (low = expected = high)."""
        allocated = max(self.allocated_by_moment().values(), default=0)
        reserved = allocated + self.outside("allocator")
        used = reserved + self.outside("context")
        figures = {"max_allocated": allocated, "max_reserved": reserved, "device_used": used, "host": self.host_peak()}
        return {name: Interval(value, value, value) for name, value in figures.items()}

    def host_peak(self) -> int:
        """The largest host bytes of one moment."""
        sums = dict.fromkeys((m.id for m in self.moments), 0)
        for h in self.holdings:
            if h.device == "host":
                for moment in h.moments:
                    sums[moment] += h.bytes
        return max(sums.values(), default=0)

    def __str__(self) -> str:
        """What ``print`` shows."""
        from advisor.notebook import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from advisor.notebook import html_of

        return html_of(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text("..." if cycle else str(self))
