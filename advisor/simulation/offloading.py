"""What is held on the host beside the device: saved activations, as ``torch.autograd.graph.save_on_cpu`` moves them.

Every tensor that autograd saves in the forward pass, weights included, is copied away as it is saved, and copied back, contiguous, as the
backward pass asks for it (torch 2.13 autograd/graph.py ``save_on_cpu``). The host's copies are counted and not made.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

from advisor.job import Job
from advisor.simulation.recorder import Recorder

FRAMEWORKS = frozenset({None, "custom"})  # others bring code of their own for it


class Saved:
    """A tensor on the host: its size, and on a CPU, where the step is really run, its values too."""

    def __init__(self, value: torch.Tensor) -> None:
        self.size, self.dtype, self.device = value.size(), value.dtype, value.device
        with Recorder.paused():
            self.values = None if value.is_meta else value.detach().clone()

    def back(self) -> torch.Tensor:
        """A new tensor on the device."""
        value = torch.empty(self.size, dtype=self.dtype, device=self.device)
        return value if self.values is None else value.copy_(self.values)


def wanted(job: Job) -> bool:
    """Whether saved activations go to the host."""
    return job.offload.activations == "cpu"


def to_host(recorder: Recorder, job: Job) -> contextlib.AbstractContextManager[Any]:
    """Around the forward pass."""
    if not wanted(job):
        return contextlib.nullcontext()

    def pack(value: torch.Tensor) -> Saved:
        saved = Saved(value)
        size = value.numel() * value.element_size()
        recorder.saved_on_host(size)
        weakref.finalize(saved, recorder.saved_on_host, -size).atexit = False
        return saved

    return torch.autograd.graph.saved_tensors_hooks(pack, Saved.back)
