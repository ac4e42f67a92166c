"""Out-of-memory texts of JAX / XLA (GPU and TPU), TensorFlow and PaddlePaddle.

Sources: xla ``BFCAllocator`` ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate N bytes."), XLA:TPU compile ("Ran out of memory in
memory space hbm. Used a of b hbm."), tensorflow ``op_kernel`` ("OOM when allocating tensor with shape[...]"), ``eager/tensor_handle``
("Dst tensor is not initialized": the copy that could not be placed); paddle ``phi/core/memory/allocation/cuda_allocator.cc`` (BadAlloc: "Cannot allocate
nGB memory on GPU 0, mGB memory has been allocated and available memory is only kMB").
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import Size, read_size

HEAD = lazily(
    r"RESOURCE_?EXHAUSTED|ResourceExhaustedError|OOM when allocating tensor|Ran out of memory in memory space|XlaRuntimeError|JaxRuntimeError|"
    r"Dst tensor is not initialized|allocation::BadAlloc|Out of memory error on GPU \d+\. Cannot allocate",
    re.IGNORECASE,
)
_SIZE = r"(\d{1,24}(?:\.\d{1,9})?\s?(?:[KMGT]i?B|bytes|B|[KMGT])?)"
_ALLOCATE = lazily(rf"(?:trying to allocate|Failed to allocate(?: request for)?|Failed to allocate)\s+{_SIZE}", re.IGNORECASE)
_TPU = lazily(rf"Used\s+{_SIZE}\s+of\s+{_SIZE}\s+(\w+)\.?\s*(?:Exceeded\s+\w+\s+capacity\s+by\s+{_SIZE})?", re.IGNORECASE)
# XLA's TPU allocator: "Attempting to reserve 12.07G at the bottom of memory. That was not possible. There are 8.83G free, 0B reserved, ..."
_RESERVE = lazily(rf"Attempting to (?:reserve|allocate)\s+{_SIZE}[^\n]{{0,80}}?not possible\.\s*There are\s+{_SIZE} free", re.IGNORECASE)
_TENSOR = lazily(
    r"OOM when allocating tensor with shape\s?\[([\d,]{0,200})\] and type (\w+) on (\S{0,200})(?:.{0,40}?allocator (\w+))?", re.IGNORECASE | re.DOTALL
)
_PADDLE = lazily(
    r"Out of memory error on GPU (\d{1,4})\. Cannot allocate (\d[\d.]{0,20}[KMGT]?B) memory on GPU \d{1,4}, (\d[\d.]{0,20}[KMGT]?B) memory has been "
    r"allocated and available memory is only (\d[\d.]{0,20}[KMGT]?B)"
)  # paddle string::HumanReadableSize divides by 1024
_WIDTHS = {"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2, "double": 8, "int32": 4, "int64": 8, "bool": 1, "int8": 1, "uint8": 1}


def _size(text: str | None) -> Size | None:
    """XLA prints ``23.43G`` for GiB."""
    if text is None:
        return None
    compact = text.replace(" ", "")
    return read_size(compact + "iB" if compact[-1:] in "KMGT" else compact)


def read_failure(text: str) -> Found | None:
    """A failure of JAX, XLA or TensorFlow."""
    details: list[tuple[str, Any]] = []
    sizes: dict[str, Size] = {}
    if (m := _TPU.search(text)) is not None:
        used, total, space, over = _size(m[1]), _size(m[2]), m[3].lower(), _size(m[4])
        details += [("memory_space", space), ("used_bytes", used.bytes if used else None), ("over_bytes", over.bytes if over else None)]
        details.append(("when", "compile" if re.search(r"compile", text, re.IGNORECASE) else "run"))
        if total is not None:
            sizes["capacity"] = total
        return Found("gpu-memory", "jax", None, sizes, details=tuple(details))  # one program is a whole training step
    if (m := _PADDLE.search(re.sub(r"\s+", " ", text))) is not None:
        named = {"requested": _size(m[2][:-1]), "allocated": _size(m[3][:-1]), "free": _size(m[4][:-1])}
        return Found("gpu-memory", "cuda", int(m[1]), {name: size for name, size in named.items() if size is not None}, details=(("what", "paddle"),))
    if "BadAlloc" in text:
        return Found("gpu-memory", "cuda", details=(("what", "paddle"),))
    if "Dst tensor is not initialized" in text:
        return Found("gpu-memory", "tensorflow", details=(("what", "copy to the card"),))
    if (m := _TENSOR.search(text)) is not None:
        shape = [int(n) for n in m[1].split(",") if n]
        size = prod(shape) * _WIDTHS.get(m[2].lower(), 4)
        device = re.search(r"GPU:(\d{1,4})", m[3])
        if size < 1 << 62:
            sizes["requested"] = Size(size, 0)
        host = device is None and "CPU" in m[3].upper()
        details += [("shape", tuple(shape)), ("dtype", m[2]), ("allocator", m[4])]
        return Found("host-memory" if host else "gpu-memory", "tensorflow", int(device[1]) if device else None, sizes, details=tuple(details))
    if (m := _RESERVE.search(text)) is not None:
        named = {"requested": _size(m[1]), "free": _size(m[2])}
        return Found("gpu-memory", "jax", None, {name: size for name, size in named.items() if size is not None}, details=tuple(details))
    if re.search(r"out of memory|trying to allocate|failed to allocate", text, re.IGNORECASE):
        if (a := _ALLOCATE.search(text)) is not None and (wanted := _size(a[1])) is not None:
            sizes["requested"] = wanted
        return Found("gpu-memory", "jax", None, sizes, details=tuple(details))
    return None
