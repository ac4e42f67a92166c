"""A process group of any size seen from one rank: collectives return at once, and sharding code takes meta for a device.

What is patched, and why, each by name (read in torch 2.13; 2.6 and newer have them):

* ``FSDPParamGroup._validate_no_meta_params``, ``_need_to_materialize_module``: parameters on meta stand for "not initialised yet" there.
* ``FSDPParamGroup._validate_cpu_offload_params``: the host is meta too (:mod:`advisor.simulation.ranks.hosting`).
* ``_get_device_from_mesh``, ``_init_device_handle``: they would look for CUDA.
* ``Tensor.data_ptr``, ``UntypedStorage.data_ptr``: all are zero on meta, so FSDP1 would take the shard for the whole; here they tell storages apart.
* ``TensorParallelLayer._from_local_last_dim_shard`` (transformers 5): makes a tensor on meta to read its strides, in every run.
* ``isend``, ``batch_isend_irecv``: the second asks for the backend of the tensors' device. What is sent is held by the work of a single send as long as
  that is named, by a batch's until it is waited for (ProcessGroupNCCL.cpp ``pointToPoint``: ``outputs_``; ``endCoalescing``: stashed).
* ``ShardingPropagator._propagate_tensor_meta*``: DTensor works out shapes with tensors of the global shape, which a real run does on fake tensors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from advisor.simulation.patching import patched
from advisor.simulation.ranks.device import Meta
from advisor.simulation.recorder import Recorder


class Sent:
    """Tensors on their way to other ranks, and from them."""

    def __init__(self, tensors: list[torch.Tensor], *, stashed: bool) -> None:
        self._tensors, self._stashed = tensors, stashed

    def wait(self, *_: Any) -> bool:
        """They have arrived."""
        if self._stashed:
            self._tensors = []
        return True


def _sending() -> list[tuple[Any, str, Any]]:
    def isend(tensor: torch.Tensor, *_: Any, **__: Any) -> Sent:
        return Sent([tensor], stashed=False)

    def batch(operations: list[Any]) -> list[Sent]:
        return [Sent([operation.tensor for operation in operations], stashed=True)]

    return [(dist, "batch_isend_irecv", batch), *((owner, "isend", isend) for owner in (dist, distributed_c10d))]


@contextlib.contextmanager
def opened(world: int, rank: int) -> Iterator[Meta]:
    """Be one rank of ``world`` while the context is open."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    device = Meta()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        with patched([(torch, "meta", device), *_sending(), *_fsdp(), *_pointers(), *propagation()]):
            yield device
    finally:
        dist.destroy_process_group()


def _fsdp() -> list[tuple[Any, str, Any]]:
    from torch.distributed.fsdp import _init_utils, fully_sharded_data_parallel
    from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle
    from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param_group, _fully_shard

    def device(_: Any) -> torch.device:
        return torch.device("meta")

    def handle(state: Any, *_: Any, **__: Any) -> Any:
        state._device_handle = _FSDPDeviceHandle.from_device(torch.device("meta"))
        return state

    patches: list[tuple[Any, str, Any]] = [
        *((_fsdp_param_group.FSDPParamGroup, name, lambda *_: None) for name in ("_validate_no_meta_params", "_validate_cpu_offload_params")),
        (_init_utils, "_need_to_materialize_module", lambda *_: (False, False)),
        *((owner, "_init_device_handle", handle) for owner in (_init_utils, fully_sharded_data_parallel)),
    ]
    patches += [(owner, "_get_device_from_mesh", device) for owner in (_fsdp_init, _fully_shard) if hasattr(owner, "_get_device_from_mesh")]
    return patches


def _pointers() -> list[tuple[Any, str, Any]]:
    of_tensor, of_storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def pointer(value: torch.Tensor) -> int:
        if not value.is_meta:
            return of_tensor(value)
        storage = value.untyped_storage()
        return storage._cdata + value.storage_offset() * value.element_size() if storage.nbytes() else 0

    def base(storage: torch.UntypedStorage) -> int:
        return of_storage(storage) if storage.device.type != "meta" else storage._cdata if storage.nbytes() else 0

    return [(torch.Tensor, "data_ptr", pointer), (torch.UntypedStorage, "data_ptr", base)]


def propagation() -> list[tuple[Any, str, Any]]:
    """DTensor's shape propagation, and the strides that transformers works out on meta in every run, unwatched."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    names = [name for name in vars(ShardingPropagator) if name.startswith("_propagate_tensor_meta")]
    patches: list[tuple[Any, str, Any]] = [(ShardingPropagator, name, _unwatched(vars(ShardingPropagator)[name])) for name in names]
    for layer in filter(None, [getattr(sys.modules.get("transformers.distributed.tensor_parallel"), "TensorParallelLayer", None)]):
        patches.append((layer, "_from_local_last_dim_shard", staticmethod(_unwatched(layer._from_local_last_dim_shard))))
    return patches


def _unwatched(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with Recorder.paused():
            return original(*args, **kwargs)

    return call
