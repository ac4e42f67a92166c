"""What one failure text says, before it is put together with its frames: the common form of all failure readers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from advisor.evidence import Backend, FailureKind, Process
from advisor.units import Size


class Found(Struct, frozen=True):
    """Kind, backend and counters of a failure text. ``sizes`` are bytes with the half unit of their last printed digit.

    ``phase``: where the text itself settles it (an engine that starts, a checkpoint that loads). ``consequence``: the text says that it
    follows from another failure (a signal from a launcher, a time-out of a peer).
    """

    kind: FailureKind
    backend: Backend | None = None
    gpu: int | None = None
    sizes: dict[str, Size] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()
    details: tuple[tuple[str, Any], ...] = ()
    phase: str | None = None
    consequence: bool = False
    rank: int | None = None
