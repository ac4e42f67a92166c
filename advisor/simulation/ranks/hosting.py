"""FSDP's CPU offload: shards, their gradients and what the optimizer makes of them on the host, copies of a unit's shards on the device.

Both are meta here, so the host is a set of storages that the recorder keeps (:meth:`Recorder.put_on_host`); patches make the copies to the device,
which ``Tensor.to`` leaves out where both devices are the same, and pass over the checks that ask for a CPU. Read in torch 2.13:

* FSDP2, distributed/fsdp/_fully_shard: ``FSDPParam._init_sharded_param`` (the shard is moved and pinned), ``FSDPParam.all_gather_inputs`` (a copy on the
  device, cast after it), ``foreach_reduce`` (each reduced shard is copied to pinned memory, or added to the one that is there).
* FSDP1, distributed/fsdp/_flat_param.py: ``init_flat_param_attributes`` (the shard is pinned, and a gradient made beside it whether it trains or not),
  ``pre_unshard`` and ``_use_low_precision_shard`` (a copy on the device, which the cast takes), ``_runtime_utils.py _offload_grad``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.recorder import Recorder

STRATEGIES = frozenset({"fsdp1", "fsdp2"})


def wanted(job: Job) -> bool:
    """Whether the sharding code keeps parameters on the host."""
    return job.offload.parameters == "cpu" and job.parallel.strategy in STRATEGIES


def transfers(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """Patches of both; they are to be there before the model is divided."""
    return [*_of_fsdp2(), *_of_fsdp1(recorder)]


def put(recorder: Recorder, model: torch.nn.Module) -> None:
    """Note that the shards of a divided model are at home on the host, in pinned memory."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    flat: list[Any] = [module._handle.flat_param for module in FullyShardedDataParallel.fsdp_modules(model) if module._handle is not None]
    for parameter in (*flat, *(p for p in model.parameters() if isinstance(p, DTensor))):
        recorder.put_on_host(parameter, pinned=True)


def _copied(home: torch.Tensor) -> torch.Tensor:
    """A tensor of the host on the device."""
    return torch.empty(home.shape, dtype=home.dtype, device=home.device).copy_(home)


def _with(owner: Any, name: str, value: Any, call: Callable[[], Any]) -> Any:
    """What a call gives while an attribute has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        return call()
    finally:
        setattr(owner, name, before)


def _of_fsdp2() -> list[tuple[Any, str, Any]]:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState

    original: Any = vars(FSDPParam)["all_gather_inputs"]

    def all_gather_inputs(param: Any) -> Any:
        if not param.offload_to_cpu or param.sharded_state != ShardedState.SHARDED:
            return original.fget(param)
        return _with(param, "_sharded_param_data", _copied(param._sharded_param_data), lambda: original.fget(param))

    return [(FSDPParam, "all_gather_inputs", property(all_gather_inputs))]


def _of_fsdp1(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    made: Any = FlatParamHandle.init_flat_param_attributes
    before: Any = FlatParamHandle.pre_unshard
    narrowed: Any = FlatParamHandle._use_low_precision_shard
    sharded: Any = FlatParamHandle._use_sharded_flat_param

    def init_flat_param_attributes(handle: Any) -> None:
        away = handle._offload_params
        _with(handle, "_offload_params", False, lambda: made(handle))
        if away:
            flat = handle.flat_param
            with Recorder.paused():
                flat._cpu_grad = torch.zeros_like(flat._local_shard)
            recorder.put_on_host(flat._cpu_grad, pinned=True)
            recorder.see(flat._cpu_grad, "aten::zeros_like")
            recorder.label(flat._cpu_grad, "gradients", "flat gradient")

    def pre_unshard(handle: Any) -> bool:
        ran: bool = before(handle)
        if handle._offload_params and recorder.on_host(handle.flat_param):
            handle.flat_param.data = _copied(handle.flat_param.data)
            return True
        return ran

    def use_low_precision_shard(handle: Any) -> None:
        if not handle._offload_params:
            narrowed(handle)
            return
        flat = handle.flat_param
        _with(flat, "_local_shard", _copied(flat._local_shard), lambda: narrowed(handle))

    def use_sharded_flat_param(handle: Any) -> None:
        _with(handle, "_offload_params", False, lambda: sharded(handle))  # it is read there for the check alone

    return [
        (FlatParamHandle, "init_flat_param_attributes", init_flat_param_attributes),
        (FlatParamHandle, "pre_unshard", pre_unshard),
        (FlatParamHandle, "_use_low_precision_shard", use_low_precision_shard),
        (FlatParamHandle, "_use_sharded_flat_param", use_sharded_flat_param),
        (FlatParamHandle, "flat_param_to", lambda *_, **__: None),
        (FlatParamHandle, "_check_on_cpu", lambda *_: None),
        (_runtime_utils, "_check_flat_params_on_expected_device", lambda *_: None),
    ]
