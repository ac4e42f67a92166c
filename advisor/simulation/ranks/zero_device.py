"""Meta as DeepSpeed's accelerator, so that its engine takes meta for the card: the answers that CUDA's own gives, where it decides what is allocated.

DeepSpeed asks its accelerator for devices, streams and events (accelerator/abstract_accelerator.py). ``is_synchronized_device`` decides whether it
runs communication on streams of its own and keeps what they use alive, ``handles_memory_backpressure`` whether stage 3 bounds its fetches by events
(accelerator/cuda_accelerator.py: both False). What is left comes from the CPU's, which needs no driver (read in 0.19.8).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from advisor.simulation.ranks.device import EIGHT, Meta
from advisor.simulation.tensors import META

PLENTY = 1 << 60  # bytes: stages 1 and 2 flatten on the card where it has room, else on the host


def accelerator(device: Meta) -> Any:
    """An object for ``deepspeed.accelerator.set_accelerator``; its streams are those that the recorder counts by."""
    of_cpu = importlib.import_module("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator

    def tensor_of(dtype: torch.dtype) -> property:
        return property(lambda _: lambda values: torch.tensor(values, dtype=dtype, device=META))

    answers: dict[str, Any] = {
        **dict.fromkeys(("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure"), lambda *_: False),
        **dict.fromkeys(("device_name", "current_device_name"), lambda *_: META),
        **dict.fromkeys(("device", "current_device"), lambda *_: torch.device(META)),
        "stream": lambda _, stream: device.stream(stream),
        "device_count": lambda _: EIGHT,
        "Stream": property(lambda _: device.Stream),
        "Event": property(lambda _: device.Event),
        "current_stream": lambda *_: device.current_stream(),
        "default_stream": lambda *_: device.default_stream(),
        "on_accelerator": lambda _, tensor: tensor.is_meta,
        **dict.fromkeys(("total_memory", "available_memory"), lambda *_: PLENTY),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), lambda *_: 0),
        "memory_stats": lambda *_: {},
        "is_fp16_supported": lambda _: True,
        "supported_dtypes": lambda _: [torch.float32, torch.float16, torch.bfloat16],
        "communication_backend_name": lambda _: "fake",
        "ByteTensor": tensor_of(torch.uint8),
        "FloatTensor": tensor_of(torch.float32),
    }
    return type("MetaAccelerator", (of_cpu,), answers)()
