"""What the counters of a failure say by the identities that the allocator keeps (c10 ``CUDACachingAllocator.cpp``).

capacity = free + what every process holds; own = context + allocated + reserved but unallocated + private pools. So what others
hold is a remainder, whether or not the text lists processes. A request of 2 or 20 MiB is a segment, not a tensor: the card is
completely full and the request says nothing of what wanted it.
"""

from __future__ import annotations

from msgspec import Struct

from advisor.arithmetic.outside import CONTEXT_EAGER, CONTEXT_LOW, NCCL
from advisor.evidence import Device, Evidence, Failure
from advisor.units import MIB

CONTEXT_HIGH = CONTEXT_EAGER + NCCL  # every kernel loaded at once, and one communicator's buffers: 1,615 MiB
SEGMENTS = (2 * MIB, 20 * MIB)  # kSmallBuffer, kLargeBuffer


class Counters(Struct, frozen=True):
    """The figures of one failure, bytes; ``None`` where they are neither printed nor implied."""

    requested: int | None
    allocated: int | None
    reserved: int | None
    free: int | None
    capacity: int | None
    foreign: int | None  # held by others, the context at its largest taken off; 0 where there is no room for others
    stranded: int | None  # reserved, not allocated, not returnable
    segment_only: bool  # the request is an allocator segment

    @property
    def wanted(self) -> int | None:
        """Allocated plus the request: the bytes that this moment needed. A request larger than the card is left out."""
        if self.allocated is None:
            return None
        if self.requested is None or self.segment_only:
            return self.allocated
        return self.allocated + self.requested


NOTHING = Counters(None, None, None, None, None, None, None, False)


def of(evidence: Evidence) -> Counters:
    """The counters of the first failure that is a cause; all ``None`` where there is none."""
    failure = evidence.failure
    if failure is None:
        return NOTHING
    return Counters(
        requested=failure.requested_bytes,
        allocated=failure.allocated_bytes,
        reserved=failure.reserved_bytes,
        free=failure.free_bytes,
        capacity=failure.capacity_bytes,
        foreign=_foreign(failure, evidence.devices),
        stranded=failure.reserved_unallocated_bytes,
        segment_only=failure.requested_bytes in SEGMENTS,
    )


def _foreign(failure: Failure, _devices: tuple[Device, ...]) -> int | None:
    """Bytes of the card that neither this process nor free memory accounts for.

    Where the own line is printed the remainder is exact. Otherwise the context is between :data:`CONTEXT_LOW` and
    :data:`CONTEXT_HIGH`; the larger is taken, so that a context is never called another process. One ``Process N`` line that
    fits allocated + reserved + context is the job itself behind a pid namespace.
    """
    if failure.capacity_bytes is None or failure.free_bytes is None:
        return None
    taken = failure.capacity_bytes - failure.free_bytes
    if failure.allowed_bytes is not None and failure.allowed_bytes < failure.capacity_bytes:
        return None
    own = failure.own_bytes
    if own is None:
        if failure.reserved_bytes is None:
            return None
        own = failure.reserved_bytes + min(CONTEXT_HIGH, failure.capacity_bytes // 4)  # a small card has no room for many communicators
        # without an NVML line a context of a lightly loaded card is not counted as another tenant
    others = max(0, taken - own)
    listed = sum(p.used_bytes or 0 for p in failure.processes if not p.own and not _is_self(p.used_bytes, failure))
    if listed and failure.own_bytes is not None:
        others = max(others, listed)
    return others


def _is_self(used: int | None, failure: Failure) -> bool:
    """Whether an unnamed process is the job itself: alone, and holding what the job reserved plus a context."""
    if used is None or failure.own_bytes is not None or failure.reserved_bytes is None:
        return False
    foreign = [p for p in failure.processes if not p.own]
    return len(foreign) == 1 and CONTEXT_LOW * 0.5 <= used - failure.reserved_bytes <= CONTEXT_HIGH
