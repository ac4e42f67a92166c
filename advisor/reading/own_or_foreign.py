"""Which of the processes that an error lists is the job itself, and how much of the card belongs to others.

Inside a container NVML reports process ids of the host, which torch cannot match with its own: the job's own process is then listed as
``Process <pid> has ...`` (c10/cuda/CUDACachingAllocator.cpp, reportProcessMemoryInfo). Identities: capacity = free + what all processes hold;
own = context + allocated + reserved but unallocated.
"""

from __future__ import annotations

from msgspec.structs import replace

from advisor.evidence import Failure, Process
from advisor.units import GIB, MIB

CONTEXT_LOW, CONTEXT_HIGH = 150 * MIB, round(2.2 * GIB)  # CUDA context with its kernels, cuBLAS and NCCL buffers: about 0.3 to 1.5 GiB


def settle(failure: Failure) -> Failure:
    """The failure with its own process marked, and ``details`` ``own_bytes``, ``foreign_bytes`` and how they were found."""
    if failure.capacity_bytes is None or failure.free_bytes is None or failure.kind not in ("gpu-memory", "gpu-driver"):
        return failure
    reserved = failure.reserved_bytes
    processes = tuple(replace(p, used_bytes=None) if _cannot_be(p.used_bytes, p.own, failure) else p for p in failure.processes)
    how = "the text names this process"
    if not any(p.own for p in processes) and processes and reserved is not None:
        near = [p for p in processes if p.used_bytes is not None and reserved - 64 * MIB <= p.used_bytes <= reserved + CONTEXT_HIGH]
        if len(near) == 1:
            processes = tuple(replace(p, own=True) if p is near[0] else p for p in processes)
            how = "one listed process holds what PyTorch reserved and a context: the job itself, seen from inside a container"
        elif (sole := _sole(failure, reserved)) is not None:
            processes = tuple(replace(p, own=True) if p is sole else p for p in processes)
            how = "without this process the rest of the card is less than PyTorch reserved: it is the job itself, seen from inside a container"
    own = next((p.used_bytes for p in processes if p.own and p.used_bytes is not None), None)
    in_use = failure.capacity_bytes - failure.free_bytes
    details = failure.details
    if own is not None:
        foreign = in_use - own
    elif reserved is not None:
        foreign = in_use - reserved - round(0.6 * GIB)
        how = "what is in use, less what PyTorch reserved and about 0.6 GiB of context"
    else:
        return replace(failure, processes=processes)
    listed = sum(p.used_bytes for p in processes if not p.own and p.used_bytes is not None)
    details += (("foreign_bytes", max(foreign, listed if own is not None else 0, 0)), ("foreign_how", how))
    if own is not None and reserved is not None:
        details += (("outside_pytorch_bytes", own - reserved),)
    return replace(failure, processes=processes, details=details)


def _cannot_be(used: int | None, own: bool, failure: Failure) -> bool:
    """Whether NVML did not know what a process holds: it says 0 behind WSL and some containers, and 2^64 - 1 bytes ("17179869184.00 GiB") on others.

    ``nvmlProcessInfo_t.usedGpuMemory`` is ``NVML_VALUE_NOT_AVAILABLE`` where the driver does not keep the count. The own process holds
    what PyTorch has allocated at least.
    """
    if used is None:
        return False
    return used > 1.5 * (failure.capacity_bytes or used) or (own and used < (failure.allocated_bytes or 1) - 64 * MIB)


def _sole(failure: Failure, reserved: int) -> Process | None:
    """The one listed process that can be the job: large enough, where what no listed process holds has no room for what PyTorch reserved."""
    unlisted = (failure.capacity_bytes or 0) - (failure.free_bytes or 0) - sum(p.used_bytes or 0 for p in failure.processes)
    if unlisted >= reserved - 64 * MIB:
        return None
    able = [p for p in failure.processes if p.used_bytes is not None and p.used_bytes >= reserved - 64 * MIB]
    return able[0] if len(able) == 1 else None
