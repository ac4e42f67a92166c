"""What the buffers of DDP, FSDP1 and FSDP2 are: what their own functions make while they gather and reduce is communication, as in the estimate.

Read in torch 2.13: nn/parallel/distributed.py ``_pre_forward`` (buckets are made anew in the order of the first backward pass, by C++),
distributed/fsdp/_fully_shard/_fsdp_collectives.py, distributed/fsdp/_flat_param.py, distributed/fsdp/_runtime_utils.py. What becomes a parameter's
gradient is named so by the step, which comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from advisor.simulation.stream import Stream


def patches(stream: Stream) -> list[tuple[Any, str, Any]]:
    """Functions that say what they make."""
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group
    from torch.nn.parallel import DistributedDataParallel

    made: list[tuple[Any, str, str]] = [
        (DistributedDataParallel, "_pre_forward", "gradient buckets"),
        (_fsdp_param_group, "foreach_all_gather", "all-gather buffer"),
        (_fsdp_param_group, "foreach_all_gather_copy_out", "gathered parameters"),
        (_fsdp_param_group, "foreach_reduce", "reduce-scatter buffers"),
        (FlatParamHandle, "pre_unshard", "shard cast to be gathered"),
        (FlatParamHandle, "unshard", "gathered parameters"),
        (_runtime_utils, "_reduce_grad", "reduce-scatter buffers"),
    ]
    return [(owner, name, _making(stream, getattr(owner, name), ("communication", what))) for owner, name, what in made]


def label(stream: Stream) -> None:
    """Name what they made and nothing else has named."""
    for number, (part, name) in stream.made.items():
        storage = stream.storages.get(number)
        if storage is not None and storage.part is None:
            storage.part, storage.name = part, name


def _making(stream: Stream, original: Callable[..., Any], what: tuple[str, str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before, stream.making = stream.making, what
        try:
            return original(*args, **kwargs)
        finally:
            stream.making = before

    return call
