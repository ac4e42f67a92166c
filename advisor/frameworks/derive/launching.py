"""How many GPUs a launcher names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.frameworks.codecs import count
from advisor.job import Job


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


_CONTEXT = "parallelism_config.parallelism_config_"


def accelerate_context(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``cp_size`` is torch's ring over the sequence, ``sp_size`` DeepSpeed's Ulysses over the heads."""
    ring, heads = raw.get(f"{_CONTEXT}cp_size"), raw.get(f"{_CONTEXT}sp_size")
    if heads is not None and count(heads) > 1:
        return {"parallel.context": count(heads), "parallel.context_kind": "ulysses"}
    return {} if ring is None else {"parallel.context": count(ring), **({"parallel.context_kind": "ring"} if count(ring) > 1 else {})}


def write_accelerate_context(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The size under the name of its kind."""
    if "parallel.context" not in wanted:
        return {}
    if after.parallel.context_kind == "ulysses":
        return {f"{_CONTEXT}sp_size": wanted["parallel.context"], f"{_CONTEXT}sp_backend": "deepspeed"}
    return {f"{_CONTEXT}cp_size": wanted["parallel.context"]}
