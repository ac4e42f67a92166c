"""What FSDP gathers: storages that it resizes rather than makes anew, and buffers of its collectives.

FSDP frees a gathered parameter by ``UntypedStorage.resize_(0)`` and makes it again by resizing (torch 2.6 to 2.13,
``torch/distributed/fsdp/_fully_shard/_fsdp_param.py`` ``alloc_storage``, ``free_storage``; FSDP1 ``torch/distributed/utils.py`` ``_alloc_storage``),
which no operator shows.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

MAX_FRAMES = 24
REDUCED = "chunk_cat"  # FSDP2's operator that puts whole gradients into the buffer to be reduced
_FSDP = f"{Path(torch.__file__).parent / 'distributed' / 'fsdp'}{os.sep}"
_CALL = inspect.getsourcefile(torch.nn.Module)


def divided(model: torch.nn.Module) -> bool:
    """Whether FSDP divides the model."""
    return any(hasattr(p, "_local_tensor") for p in model.parameters()) or any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())


@contextlib.contextmanager
def telling(resized: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Have ``resized`` called after each resizing of a storage."""
    kind: Any = torch.UntypedStorage
    before = kind.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = before(storage, size)
        resized(storage)
        return result

    kind.resize_ = resize
    try:
        yield
    finally:
        if "resize_" in vars(kind) and kind.resize_ is resize:
            kind.resize_ = before


def by_fsdp() -> bool:
    """Whether FSDP itself makes what is being made: its code is between here and the module, or the code that is not torch's."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        kind = _kind(frame.f_code.co_filename)
        if kind is not None:
            return kind
        frame = frame.f_back
    return False


@lru_cache(maxsize=4096)
def _kind(name: str) -> bool | None:
    """Of a source file: FSDP's; a module's call, where nothing of FSDP's was before it; or neither."""
    return True if name.startswith(_FSDP) else False if name == _CALL else None
