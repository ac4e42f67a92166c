"""How many GPUs a launcher names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count


def accelerate_processes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``num_processes`` counts all machines; a sharding strategy divides over them all."""
    if (processes := raw.get("num_processes")) is None:
        return {}
    total, machines = count(processes), count(raw.get("num_machines") or 1)
    found: dict[str, Any] = {"hardware.gpus_per_node": max(1, total // machines), "hardware.nodes": machines}
    strategy = str(raw.get("fsdp_config.fsdp_sharding_strategy") or "").upper()
    kind = str(raw.get("distributed_type") or "").upper()
    if (kind == "FSDP" and "HYBRID" not in strategy and strategy not in ("4", "5")) or (
        kind == "DEEPSPEED" and str(raw.get("deepspeed_config.zero_stage")) in "123"
    ):
        found["parallel.shard"] = total
    return found


def processes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``accelerate launch --num_processes 16 --num_machines 2``."""
    if raw.get("num_processes") is None:
        return {}
    return {"hardware.gpus_per_node": max(1, count(raw["num_processes"]) // count(raw.get("num_machines") or 1))}


def world(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``WORLD_SIZE`` counts all nodes."""
    if raw.get("WORLD_SIZE") is None:
        return {}
    return {"hardware.gpus_per_node": max(1, count(raw["WORLD_SIZE"]) // count(raw.get("NNODES") or 1))}
