"""What the recorder writes down: storages, their births and deaths, and bytes as the allocator counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BLOCK = 512  # the caching allocator rounds every request up to this (c10/core/AllocatorConfig.h kMinBlockSize)


class Event(NamedTuple):
    """``free`` False: storage ``id`` was born; True: it died."""

    free: bool
    id: int


@dataclass(slots=True)
class Storage:
    """A storage: its bytes, rounded and as asked for, and how it came to be. ``part`` is set where the step's bookkeeping knows it."""

    bytes: int
    requested: int
    operator: str
    phase: str
    step: int
    module: str
    shape: tuple[int, ...]
    dtype: str
    part: str | None = None
    name: str | None = None
    site: str = ""  # file:line function of the model's or library's code that asked for it
    stream: int = 0  # the pool that it came from
    host: bool = False  # it lies on the host; ``bytes`` are then what is taken there


def rounded(size: int) -> int:
    """Bytes as the allocator counts them."""
    return max(BLOCK, -(-size // BLOCK) * BLOCK)


def pinned_bytes(size: int) -> int:
    """Bytes that pinned memory takes: the next power of two (aten/src/ATen/core/CachingHostAllocator.h ``allocate``, torch 2.13)."""
    return 1 << (size - 1).bit_length() if size > 1 else size
