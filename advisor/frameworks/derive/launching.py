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
    """``cp_size`` is torch's ring over the sequence, ``sp_size`` DeepSpeed's Ulysses over the heads; FSDP divides over ``dp_shard`` and the ring together.

    accelerate 1.15, parallelism_config.py: ``total_size`` is the product of all sizes, ``dp_shard_cp_dim_names`` the joint mesh that shards.
    """
    ring, heads, shard = (raw.get(f"{_CONTEXT}{name}_size") for name in ("cp", "sp", "dp_shard"))
    kind, size = ("ulysses", count(heads)) if heads is not None and count(heads) > 1 else ("ring", count(ring) if ring is not None else 1)
    found: dict[str, Any] = {} if ring is None and size == 1 else {"parallel.context": size}
    if size > 1:
        found["parallel.context_kind"] = kind
    return found if shard is None else {**found, "parallel.shard": count(shard) * size}


def write_accelerate_context(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """The size under the name of its kind, and under FSDP2 what is left of the ranks for ``dp_shard``: the product of both must be all of them."""
    out: dict[str, Any] = {}
    p = after.parallel
    if "parallel.context" in wanted:
        if p.context_kind == "ulysses":
            out |= {f"{_CONTEXT}sp_size": wanted["parallel.context"], f"{_CONTEXT}sp_backend": "deepspeed"}
        else:
            out[f"{_CONTEXT}cp_size"] = wanted["parallel.context"]
    if p.strategy == "fsdp2" and p.shard is not None and (out or "parallel.shard" in wanted):
        out[f"{_CONTEXT}dp_shard_size"] = max(1, p.shard // (p.context or 1))
    return out


def axolotl_context(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``context_parallel_size`` (once ``sequence_parallel_degree``) is divided off the ranks before ``dp_shard_size`` (axolotl utils/distributed.py)."""
    ring = raw.get("context_parallel_size") or raw.get("sequence_parallel_degree")
    found = {} if ring is None else {"parallel.context": count(ring)}
    shard = raw.get("dp_shard_size")
    return found if shard is None else {**found, "parallel.shard": count(shard) * found.get("parallel.context", 1)}


def write_axolotl_context(wanted: Mapping[str, Any], after: Job) -> dict[str, Any]:
    """``dp_shard_size`` only under FSDP: axolotl refuses it elsewhere."""
    p = after.parallel
    out: dict[str, Any] = {"context_parallel_size": wanted["parallel.context"]} if "parallel.context" in wanted else {}
    if p.strategy in ("fsdp1", "fsdp2") and p.shard is not None and (out or "parallel.shard" in wanted):
        out["dp_shard_size"] = max(1, p.shard // (p.context or 1))
    return out
