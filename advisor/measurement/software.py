"""Versions of what computes and allocates, of a run as it is: libraries that it has loaded, CUDA or ROCm, cuDNN and the driver."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import torch

from advisor.measurement import machine

LIBRARIES = {  # name of the module that is loaded: name of its distribution
    "transformers": "transformers", "accelerate": "accelerate", "peft": "peft", "trl": "trl", "lightning": "lightning",
    "pytorch_lightning": "pytorch-lightning", "deepspeed": "deepspeed", "bitsandbytes": "bitsandbytes", "torchao": "torchao",
    "flash_attn": "flash-attn", "flash_attn_interface": "flash-attn-3", "xformers": "xformers", "triton": "triton", "liger_kernel": "liger-kernel",
    "transformer_engine": "transformer-engine", "apex": "apex",
}  # fmt: skip


def loaded(device: str) -> dict[str, str]:
    """Version by name; what is not loaded, or does not say its version, is left out. ``device``: ``cpu``, or a CUDA or ROCm device."""
    found: dict[str, str] = {"torch": str(torch.__version__)}
    for module, distribution in LIBRARIES.items():
        if module in sys.modules:
            try:
                found[module] = metadata.version(distribution)
            except metadata.PackageNotFoundError:  # built beside the package manager, or a stand-in
                version = getattr(sys.modules[module], "__version__", None)
                if isinstance(version, str):
                    found[module] = version
    if device.startswith("cuda"):
        backend: Any = torch.backends.cudnn
        cudnn = backend.version()
        on_card = {"cuda": torch.version.cuda, "rocm": torch.version.hip, "cudnn": None if cudnn is None else str(cudnn), "driver": machine.driver()}
        found |= {name: version for name, version in on_card.items() if version is not None}
    return found
