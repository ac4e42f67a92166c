"""The recorded step as a memory snapshot in the form of ``torch.cuda.memory._snapshot()``, which PyTorch's memory viewer opens.

Form: torch/cuda/memory.py ``_snapshot`` (its docstring's classes ``Segment``, ``Block``, ``TraceEntry``, ``Frame``), torch 2.1 to 2.13.
Only plain dictionaries, lists, text and numbers go into the pickle. Frames hold the operator, the module and the phase.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.simulation.allocator import Caching
from advisor.simulation.blocks import Block
from advisor.simulation.timeline import StorageLike

MICROSECOND_A_EVENT = 1  # the viewer wants times; the probe knows only the order


def of(allocator: Caching, storages: Mapping[int, StorageLike]) -> dict[str, Any]:
    """The snapshot of a replay that kept its trace."""
    traces = [
        {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time * MICROSECOND_A_EVENT, "frames": _frames(storages.get(number))}
        for time, (action, address, size, number) in enumerate(allocator.trace or [])
    ]
    settings = allocator.settings
    written = f"expandable_segments:{settings.expandable}"
    return {
        "segments": _segments(allocator, storages),
        "device_traces": [traces],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": written, "expandable_segments": settings.expandable},
        "external_annotations": [],
    }


def write(path: Path, allocator: Caching, storages: Mapping[int, StorageLike]) -> None:
    """The snapshot as a pickle file."""
    with path.open("wb") as file:
        pickle.dump(of(allocator, storages), file, protocol=4)


def _segments(allocator: Caching, storages: Mapping[int, StorageLike]) -> list[dict[str, Any]]:
    chains: dict[int, list[Block]] = {}
    known = [*allocator.blocks.values(), *(b for pool in allocator.pools.values() for b in pool.held)]
    for block in sorted(known, key=lambda b: b.address):
        chains.setdefault(block.segment, []).append(block)
    found = []
    for address, blocks in chains.items():
        pool = blocks[0].pool
        active = [b for b in blocks if not b.free]
        found.append(
            {
                "device": 0, "address": address, "total_size": sum(b.size for b in blocks), "stream": pool.stream,
                "allocated_size": sum(b.size for b in active), "active_size": sum(b.size for b in active),
                "requested_size": sum(b.requested for b in active), "segment_type": "small" if pool.small else "large",
                "segment_pool_id": (0, 0), "is_expandable": blocks[0].expandable, "frames": [], "blocks": [_block(b, storages) for b in blocks],
            }
        )  # fmt: skip
    return found


def _block(block: Block, storages: Mapping[int, StorageLike]) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.size if block.free else block.requested,
        "state": "inactive" if block.free else "active_allocated",
        "frames": [] if block.free else _frames(storages.get(block.owner)),
    }


def _frames(storage: StorageLike | None) -> list[dict[str, Any]]:
    if storage is None:
        return []
    what = storage.name or storage.operator
    shape = "x".join(map(str, storage.shape))
    found = [{"name": f"{what} [{shape}] {storage.dtype}".strip(), "filename": storage.module or "the step", "line": 0}]
    if storage.site:
        file, _, rest = storage.site.partition(":")
        line, _, name = rest.partition(" ")
        found.append({"name": name, "filename": file, "line": int(line) if line.isdigit() else 0})
    return [*found, {"name": storage.phase, "filename": f"step {storage.step + 1}", "line": 0}]
