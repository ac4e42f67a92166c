"""MLX's failures on Apple's cards: Metal's own word, and a buffer larger than Metal gives.

Sources: ml-explore/mlx ``mlx/backend/metal/metal.cpp`` ("[METAL] Command buffer execution failed: Insufficient Memory
(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", issue 479) and ``mlx/backend/metal/allocator.cpp`` ("[metal::malloc] Attempting to
allocate n bytes which is greater than the maximum allowed buffer size of m bytes", "[malloc_or_wait] Unable to allocate n bytes").
"""

from __future__ import annotations

from typing import Any

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import Size

HEAD = lazily(  # the bracket may have been taken for a logger's name, its "[m" for a colour; others say "MemoryError: Unable to allocate n bytes"
    r"kIOGPUCommandBufferCallbackErrorOutOfMemory|Attempting to allocate \d{1,18} bytes which is greater than the maximum allowed buffer size|"
    r"(?:^|\bRuntimeError: |what\(\):\s{1,4}|alloc\w{0,20}\] )Unable to allocate \d{1,18} bytes\b(?! for an array)"
)
_ASKED = lazily(r"(?:Attempting|Unable) to allocate (\d{1,18}) bytes")
_LIMIT = lazily(r"maximum allowed buffer size of (\d{1,18}) bytes")


def read_failure(text: str) -> Found | None:
    """The request, where one is printed; ``details`` say when the limit is that of one buffer and not of the card."""
    if HEAD.search(text) is None:
        return None
    asked, limit = _ASKED.search(text), _LIMIT.search(text)
    details: tuple[tuple[str, Any], ...] = (("library", "mlx"),)
    if limit is not None:
        details += (("limit", "one buffer of Metal"), ("limit_bytes", int(limit[1])))
    return Found("gpu-memory", "mps", None, {"requested": Size(int(asked[1]), 0)} if asked is not None else {}, details=details)
