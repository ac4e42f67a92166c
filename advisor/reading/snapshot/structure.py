"""The parts of a memory snapshot, whatever form it has: segments with their blocks, and a trace of events for each device.

Forms, from torch ``torch/csrc/cuda/Module.cpp`` THCPModule_memorySnapshot and ``torch/csrc/cuda/memory_snapshot.cpp``:
2.0: blocks without ``address``, their frames in ``history``; from 2.1: ``address`` and ``frames`` in each block, ``segment_pool_id`` and
``is_expandable`` in a segment, ``time_us`` in an event; later: ``allocator_settings``, ``external_annotations``. ``torch.cuda.memory_snapshot()`` is the
list of segments alone. Block states are ``active_allocated``, ``active_pending_free`` (the documentation says ``active_awaiting_free``), ``inactive``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from advisor.reading.snapshot.opcodes import RefusedError

MAX_SEGMENTS, MAX_BLOCKS, MAX_EVENTS, MAX_DEVICES = 1_000_000, 5_000_000, 20_000_000, 64
TORCH_SAVE = 0x1950A86A20F9469CFC6C  # MAGIC_NUMBER of torch/serialization.py, a pickle of its own before the rest
LARGEST = 1 << 50  # bytes; more is no size
ROUND = 512  # bytes: kMinBlockSize, to which the allocator rounds every request (c10 CUDACachingAllocator.cpp)

Frames = list[Any]


class Block(Struct, frozen=True):
    """A block of a segment. ``state``: ``allocated`` (in use), ``pending`` (freed, an event of another stream outstanding) or ``free``."""

    address: int
    size: int
    requested: int
    state: str
    frames: Frames


class Segment(Struct, frozen=True):
    """One reservation. ``pool``: the private pool that owns it, ``None`` for the common one."""

    device: int
    size: int
    large: bool
    pool: tuple[int, int] | None
    expandable: bool
    blocks: tuple[Block, ...]


class Parts(Struct):
    """A snapshot's parts. Events stay as they were read, because there may be millions."""

    form: str
    segments: list[Segment] = field(default_factory=list)
    traces: list[list[Any]] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0


def number(value: Any, highest: int = LARGEST) -> int:
    """A whole number within bounds; 0 where it is none."""
    return value if type(value) is int and 0 <= value <= highest else 0


def rounded(size: int) -> int:
    """What a request takes of the pool: whole blocks of 512 bytes."""
    return max(ROUND, -(-size // ROUND) * ROUND)


def parts(data: Any) -> Parts:
    """Take a snapshot apart.

    Raises:
        RefusedError: where it is something else, or larger than any real one.
    """
    if isinstance(data, Mapping) and ("segments" in data or "device_traces" in data):
        settings = data.get("allocator_settings")
        out = Parts("snapshot", settings=settings if isinstance(settings, Mapping) else {})
        _segments(data.get("segments"), out)
        _traces(data.get("device_traces"), out)
        return out
    if isinstance(data, list) and data and isinstance(data[0], Mapping) and "total_size" in data[0]:
        out = Parts("segments only, as memory_snapshot() returns them")
        _segments(data, out)
        return out
    events = data if isinstance(data, list) and data and isinstance(data[0], list) else [data]
    if isinstance(events[0], list) and any(isinstance(e, Mapping) and "action" in e for trace in events[:MAX_DEVICES] if trace for e in trace[:1]):
        out = Parts("trace only")
        _traces(events, out)
        return out
    raise RefusedError(f"{_words(data)}, not a memory snapshot: it has no segments and no device_traces")


def _words(data: Any) -> str:
    if data == TORCH_SAVE:
        return "a checkpoint in the old form of torch.save"
    if isinstance(data, Mapping):
        keys = ", ".join(repr(str(key)[:40]) for key in list(data)[:5])
        return f"a dictionary with {len(data):,} keys ({keys})" if data else "an empty dictionary"
    if isinstance(data, list):
        return f"a list of {len(data):,} items" if data else "an empty list"
    return f"a value of type {type(data).__name__}"


def _segments(data: Any, out: Parts) -> None:
    if not isinstance(data, list):
        return
    if len(data) > MAX_SEGMENTS:
        raise RefusedError(f"a snapshot with {len(data):,} segments; at most {MAX_SEGMENTS:,} are read")
    total = 0
    for raw in data:
        if not isinstance(raw, Mapping):
            out.skipped += 1
            continue
        blocks = raw.get("blocks")
        blocks = blocks if isinstance(blocks, list) else []
        total += len(blocks)
        if total > MAX_BLOCKS:
            raise RefusedError(f"a snapshot with more than {MAX_BLOCKS:,} blocks; it was not read further")
        address = number(raw.get("address"), 1 << 63)
        read: list[Block] = []
        for block in blocks:
            if isinstance(block, Mapping):
                read.append(_block(block, address))
                address = read[-1].address + read[-1].size
            else:
                out.skipped += 1
        out.segments.append(
            Segment(
                number(raw.get("device"), MAX_DEVICES), number(raw.get("total_size")), raw.get("segment_type") != "small", _pool(raw.get("segment_pool_id")),
                raw.get("is_expandable") is True, tuple(read),
            )
        )  # fmt: skip


def _block(raw: Mapping[str, Any], address: int) -> Block:
    size = number(raw.get("size"))
    said = str(raw.get("state"))
    state = "allocated" if said == "active_allocated" else "pending" if said.startswith("active") else "free"
    frames, requested = raw.get("frames"), raw.get("requested_size")
    history = raw.get("history")
    if frames is None and isinstance(history, list) and history and isinstance(history[0], Mapping):  # torch 2.0 and 1.13
        frames, requested = history[0].get("frames"), raw.get("requested_size", history[0].get("real_size"))
    return Block(
        number(raw.get("address"), 1 << 63) or address,
        size,
        number(requested) if requested is not None else size,
        state,
        frames if isinstance(frames, list) else [],
    )


def _pool(raw: Any) -> tuple[int, int] | None:
    if isinstance(raw, (tuple, list)) and len(raw) == 2:
        pair = number(raw[0], 1 << 62), number(raw[1], 1 << 62)
        return pair if pair != (0, 0) else None
    return None


def _traces(data: Any, out: Parts) -> None:
    if not isinstance(data, list):
        return
    traces = [trace if isinstance(trace, list) else [] for trace in data[:MAX_DEVICES]]
    if sum(map(len, traces)) > MAX_EVENTS:
        raise RefusedError(f"a snapshot with {sum(map(len, traces)):,} events; at most {MAX_EVENTS:,} are read. Record fewer with max_entries")
    out.traces = traces
