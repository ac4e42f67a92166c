"""FSDP2's ``CPUOffloadPolicy``: shards, their gradients and what the optimizer makes of them on the host, copies of a unit's shards on the device.

Both are meta here, so the host is a set of storages that the recorder keeps (:meth:`Recorder.put_on_host`). Read in torch 2.13
distributed/fsdp/_fully_shard: ``FSDPParam._init_sharded_param`` (the shard is moved and pinned), ``FSDPParam.all_gather_inputs`` (a copy on the device,
cast after it), ``foreach_reduce`` (each reduced shard is copied to pinned memory, or added to the one that is there).
"""

from __future__ import annotations

from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.recorder import Recorder


def wanted(job: Job) -> bool:
    """Whether the sharding code keeps parameters on the host."""
    return job.offload.parameters == "cpu" and job.parallel.strategy == "fsdp2"


def transfers() -> list[tuple[Any, str, Any]]:
    """Patches: a shard is copied to the device before it is gathered, which ``Tensor.to`` would leave out where both devices are the same."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState

    original: Any = vars(FSDPParam)["all_gather_inputs"]

    def all_gather_inputs(param: Any) -> list[torch.Tensor]:
        home = param._sharded_param_data
        if not param.offload_to_cpu or param.sharded_state != ShardedState.SHARDED:
            found: list[torch.Tensor] = original.fget(param)
            return found
        param._sharded_param_data = torch.empty(home.shape, dtype=home.dtype, device=home.device).copy_(home)
        try:
            found = original.fget(param)
        finally:
            param._sharded_param_data = home
        return found

    return [(FSDPParam, "all_gather_inputs", property(all_gather_inputs))]


def put(recorder: Recorder, model: torch.nn.Module) -> None:
    """Note that the shards of a divided model are at home on the host, in pinned memory."""
    from torch.distributed.tensor import DTensor

    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            recorder.put_on_host(parameter, pinned=True)
