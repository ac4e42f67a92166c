"""What was read: facts with their place, failures with their counters, and the lines that may speak for a cause.

Nothing here knows of causes. Readers fill these types; rules look at them. All text in them is already masked
(:mod:`advisor.reading.masking`): no secrets, user names, hosts or home paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

FactKind = Literal["stated", "read", "default", "assumed", "inferred"]
FailureKind = Literal["gpu-memory", "gpu-driver", "host-memory", "collective", "engine-start", "not-memory"]
Backend = Literal["cuda", "hip", "xpu", "mps", "npu", "jax", "tensorflow", "cpu"]


class Fact(Struct, frozen=True):
    """One value and where it is from. ``field`` is a dotted path of the job (``batch.seq_len``)."""

    field: str
    value: Any
    kind: FactKind
    where: str | None = None  # "args.py:3", or "trl 1.16 SFTConfig" for a default
    why: str | None = None  # the reason, for assumed and inferred values
    text: str | None = None  # the line it was read from, masked
    alternatives: tuple[Any, ...] = ()  # other plausible values of an assumed fact: the interval varies it over these

    def to_json(self) -> dict[str, Any]:
        """The contract's form; empty keys left out."""
        out: dict[str, Any] = {"field": self.field, "value": self.value, "kind": self.kind}
        for key in ("where", "why", "text"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        return out


class Line(Struct, frozen=True):
    """A line of pasted text that is not a traceback frame; repeats (digits aside) are counted, not kept."""

    where: str  # "log.txt:120"
    text: str
    rank: int | None = None
    count: int = 1


class Frame(Struct, frozen=True):
    """A traceback frame. ``file`` starts at the package (``transformers/trainer.py``) where one is recognised."""

    where: str
    file: str
    line: int
    function: str
    code: str = ""
    rank: int | None = None


class Process(Struct, frozen=True):
    """A process that holds memory of a device, as an error text or nvidia-smi lists it."""

    pid: int | None
    used_bytes: int | None
    name: str | None = None
    own: bool = False  # "this process has ... in use"


class Failure(Struct, frozen=True):
    """One failure text with its counters, bytes as printed. ``None`` is: not printed.

    ``tolerances`` holds half a unit of the last printed digit for each counter. ``reserved_unallocated_bytes`` is reserved
    minus allocated minus private pools; old texts print the reserved total, from which readers compute it.
    """

    kind: FailureKind
    where: str
    text: str
    backend: Backend | None = None
    rank: int | None = None
    gpu: int | None = None
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    allowed_bytes: int | None = None  # a per-process cap (set_per_process_memory_fraction)
    processes: tuple[Process, ...] = ()
    tolerances: tuple[tuple[str, int], ...] = ()
    phase: str | None = None  # a ledger phase where the frames or the text settle it
    frames: tuple[Frame, ...] = ()
    consequence: bool = False  # a later failure that follows from another rank's
    details: tuple[tuple[str, Any], ...] = ()  # what else the text prints: signal, exit code, util fraction, ...

    @property
    def reserved_bytes(self) -> int | None:
        """Allocated + reserved but unallocated + private pools; ``None`` where they are not printed."""
        if self.allocated_bytes is None or self.reserved_unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.reserved_unallocated_bytes + (self.private_pool_bytes or 0)

    @property
    def own_bytes(self) -> int | None:
        """What the failing process itself holds of the device, context included, where the text says so."""
        return next((p.used_bytes for p in self.processes if p.own), None)

    def tolerance(self, counter: str) -> int:
        """Half of the last printed digit of a counter, bytes (``requested``, ``allocated``, ...)."""
        return dict(self.tolerances).get(counter, 0)


class Device(Struct, frozen=True):
    """A card as nvidia-smi or a log shows it."""

    where: str
    index: int | None = None
    name: str | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[Process, ...] = ()
    mig: bool = False


class Sample(Struct, frozen=True):
    """Memory figures that a log prints at a named point: ``MA 14.2 GB``, ``memory allocated (GB): 3.1``."""

    where: str
    label: str
    step: int | None = None
    rank: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None


class Conflict(Struct, frozen=True):
    """Two texts say different things about one field: both are shown, the one used is ``kept``."""

    field: str
    kept: Fact
    other: Fact


class Source(Struct, frozen=True):
    """One text that was read: its name, what it was taken for, how many bytes, and whether reading stopped early."""

    name: str
    kind: str  # "pytorch error", "axolotl config", "nvidia-smi", "unreadable", ...
    size_bytes: int
    note: str | None = None


class NotUnderstood(Struct, frozen=True):
    """A key or line that was seen and not used, with the reason."""

    where: str
    text: str
    why: str


class Evidence(Struct, frozen=True, dict=True):
    """Everything that was read, of all texts together. ``marks`` are ids of marks that a link or bundle states directly."""

    facts: tuple[Fact, ...] = ()
    failures: tuple[Failure, ...] = ()
    lines: tuple[Line, ...] = ()
    devices: tuple[Device, ...] = ()
    samples: tuple[Sample, ...] = ()
    marks: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    sources: tuple[Source, ...] = ()
    not_understood: tuple[NotUnderstood, ...] = ()
    seen_keys: tuple[tuple[str, str, Any], ...] = ()  # (where, framework key, value): every config key, mapped or not

    @cached_property
    def noted(self) -> dict[str, Any]:
        """What was worked out of it once, by name, because many rules ask for it; evidence with something added starts without."""
        return {}

    @property
    def failure(self) -> Failure | None:
        """The first failure that is a cause rather than a consequence."""
        return next((f for f in self.failures if not f.consequence), self.failures[0] if self.failures else None)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames of every failure, the first failure's first."""
        return tuple(frame for failure in self.failures for frame in failure.frames)

    def fact(self, path: str) -> Fact | None:
        """The fact read for a job field."""
        return next((f for f in self.facts if f.field == path), None)

    def with_facts(self, facts: Iterable[Fact]) -> Evidence:
        """The same evidence with further facts behind those already there."""
        return replace(self, facts=self.facts + tuple(facts))
