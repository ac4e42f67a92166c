"""PyTorch's out-of-memory texts of all versions and backends, with every counter that they print.

The wording is matched on text without white space, so that a terminal's wrapping (inside words and numbers too) does not matter.

Sources: pytorch ``c10/cuda/CUDACachingAllocator.cpp`` (1.0 to 2.9: "cached", "reserved in total by PyTorch", "total capacty",
"total capacity ... of which ... is free"), ``c10/xpu/XPUCachingAllocator.cpp``, ``aten/src/ATen/mps/MPSAllocator.mm``,
``c10/core/impl/alloc_cpu.cpp``; Ascend ``torch_npu`` ``NPUCachingAllocator.cpp``.
"""

from __future__ import annotations

import re
from typing import Any

from advisor.evidence import Backend, Process
from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import Size, read_size

_S = (
    r"(?<!\d[.,])(?<!\d[.,][OoIl])(\d{1,24}(?:\.\d{1,9})?(?:[KMGTPE]iB|bytes|byte|[KMGT]B|B))"  # a size without white space, c10::CachingAllocator::format_size
)

HEAD = lazily(
    r"(?:CUDA|HIP|XPU|NPU|MPS backend|MUSA|MLU|GCU|HPU|SDAA|NPU)\s*out\s*of\s*memory|Tried\s+to\s+allocate|CUDA (?:driver )?error: out of memory|"
    r"HIP error: out of memory|"
    r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|cudaErrorMemoryAllocation|"
    r"CUDA failed with error out of memory|"
    r"DefaultCPUAllocator|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|out of memory \(device allocator|UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY|UR error|"
    r"(?:^|\W)OutOfMemoryError(?:\W|$)|cuda runtime error \(2\)|Triton Error \[(?:CUDA|HIP)\]: out of memory|"
    r"(?:CUSOLVER|CUSPARSE|HIPBLAS|ROCBLAS|CUFFT)_(?:STATUS_)?ALLOC_FAILED|HSA_STATUS_ERROR_OUT_OF_RESOURCES|Invalid buffer size: \d|"
    r"CUDA Error: out of memory|would exceed allowed memory\. \(out of memory\)|^(?:RuntimeError|MemoryError): .*out of memory",
    re.IGNORECASE,
)
_COUNTERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazily(pattern, re.IGNORECASE))
    for name, pattern in (
        ("requested", rf"Triedtoallocate{_S}"),
        ("capacity", rf"{_S}totalcapacity|totalcapaci?tyof{_S}"),
        ("free", rf"{_S}free[;)]|ofwhich{_S}isfree"),
        ("allocated", rf"{_S}alreadyallocated|allocatedmemory{_S}isallocatedbyPyTorch"),
        ("active", rf"{_S}currentactive"),
        ("reserved_total", rf"{_S}reservedintotalbyPyTorch"),
        # 1.0 to 1.3 print what is cached beyond what is allocated: amount_cached - amount_allocated
        ("reserved_unallocated", rf"{_S}(?:isreservedbyPyTorchbutunallocated|cached[;)])"),
        ("private_pool", rf"with{_S}allocatedinprivatepools"),
        ("allowed", rf"{_S}allowed;"),
    )
)
_OWN = lazily(rf"thisprocesshas{_S}memoryinuse", re.IGNORECASE)
_OTHER = lazily(rf"Process(\d{{1,10}})has{_S}memoryinuse", re.IGNORECASE)
_GPU = lazily(r"(?:GPU|NPU|XPU|MUSA|MLU|device)(\d{1,4})(?:;|hasatotal|hastotal)", re.IGNORECASE)
_MPS = lazily(rf"MPSbackendoutofmemory\(MPSallocated:{_S},otherallocations:{_S},maxallowed:{_S}\)\.?(?:Triedtoallocate{_S}(?:on(\w+?)pool)?)?", re.IGNORECASE)
_CPU = lazily(r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):youtriedtoallocate(\d{1,24})bytes", re.IGNORECASE)
_BUFFER = lazily(rf"Invalidbuffersize:{_S}", re.IGNORECASE)
_DEVICE_ALLOCATOR = lazily(rf"deviceallocator,requested{_S},devicefree{_S}", re.IGNORECASE)
_BACKENDS: tuple[tuple[str, Backend], ...] = (("hip", "hip"), ("xpu", "xpu"), ("mpsbackend", "mps"), ("npu", "npu"))
# c10/cuda/CUDAMallocAsyncAllocator.cpp: its limit is 2^64 - 1 bytes where none was set
_ASYNC = lazily(
    rf"Allocationondevice(\d{{1,4}})wouldexceedallowedmemory\.\(outofmemory\)(?:Currentlyallocated:{_S}Requested:{_S}Devicelimit:{_S}"
    rf"Free\(accordingtoCUDA\):{_S}(?:PyTorchlimit\(setbyuser-suppliedmemoryfraction\):{_S})?)?",
    re.IGNORECASE,
)
_EXABYTE = lazily(r"Triedtoallocatemorethan1EBmemory", re.IGNORECASE)
_DRIVER: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazily(pattern, re.IGNORECASE))
    for name, pattern in (
        ("cublas", r"(?:CU|HIP|ROC)BLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
        ("cusolver", r"(?:CUSOLVER|CUSPARSE|CUFFT)_(?:STATUS_)?ALLOC_FAILED"),
        ("triton", r"TritonError\[(?:CUDA|HIP)\]:outofmemory"),
        ("hsa", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
        ("cudnn", r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_INITIALIZED"),
        ("cumem", r"cumem_allocator"),
        ("driver", r"CUDAdrivererror:outofmemory|CUDA_ERROR_OUT_OF_MEMORY"),
        (
            "runtime",
            r"(?:CUDA|HIP)error:outofmemory|cudaruntimeerror\(2\):outofmemory|cudaErrorMemoryAllocation|hipErrorOutOfMemory|"
            r"CUDAfailedwitherroroutofmemory",
        ),
        ("level-zero", r"UR_RESULT_ERROR_OUT_OF_\w+|URerror"),
    )
)


def read_failure(text: str) -> Found | None:
    """The counters of a failure text (its lines joined); ``None`` where it is no PyTorch memory failure."""
    squeezed = re.sub(r"\s+", "", text[:20_000])
    lowered = squeezed.lower()
    if (m := _MPS.search(squeezed)) is not None:
        return _mps(m)
    if (m := _BUFFER.search(squeezed)) is not None and (size := read_size(_binary(m[1]))) is not None:
        return Found("gpu-memory", "mps", None, {"requested": size}, details=(("limit", "one buffer of Metal"),))
    if (m := _CPU.search(squeezed)) is not None:
        return Found("host-memory", "cpu", None, {"requested": Size(int(m[1]), 0)}, (), (("allocator", "cpu"),))
    sizes = {name: size for name, pattern in _COUNTERS if (size := _first(pattern, squeezed)) is not None}
    backend: Backend = next((b for word, b in _BACKENDS if f"{word}outofmemory" in lowered or f"{word}error" in lowered), "cuda")
    details: list[tuple[str, Any]] = []
    if (
        "outofresource:" in lowered and "hardwarelimit" in lowered
    ):  # torch/csrc/inductor/static_launcher raises its OutOfMemoryError for a kernel's shared memory
        return Found("not-memory", backend, None, {}, (), (("exception", "a kernel's shared memory"),))
    if _EXABYTE.search(squeezed):
        details.append(("more_than_1eb", True))
        return Found("not-memory", backend, None, {}, (), tuple(details))
    if (m := _ASYNC.search(squeezed)) is not None:
        return _async(m)
    if (m := _DEVICE_ALLOCATOR.search(squeezed)) is not None:
        found = {name: size for name, raw in (("requested", m[1]), ("free", m[2])) if (size := read_size(raw)) is not None}
        return Found("gpu-memory", backend, None, found, (), (("allocator", "device"),))
    driver = next((name for name, pattern in _DRIVER if pattern.search(squeezed)), None)
    if driver is not None and "requested" not in sizes:
        return Found("gpu-driver", backend, None, sizes, _processes(squeezed), (("driver", driver),))
    if "requested" not in sizes and ("outofmemory" not in lowered or "lowonmemory" in lowered or "ray.exceptions" in lowered):
        return None  # ray.exceptions.OutOfMemoryError is the host's memory
    if "active" in sizes:
        details.append(("active_bytes", sizes["active"].bytes))
    if "expandable_segments" in lowered or "max_split_size_mb" in lowered:
        details.append(("advice", "constant"))  # printed with every failure: no sign of fragmentation
    gpu = _GPU.search(squeezed)
    return Found("gpu-memory", backend, int(gpu[1]) if gpu else None, sizes, _processes(squeezed), tuple(details))


def _mps(match: re.Match[str]) -> Found:
    """Apple's own accounting: what MPS holds, what else is allocated by the driver, and the limit that a ratio sets."""
    sizes = {
        name: size
        for name, raw in (("allocated", match[1]), ("other", match[2]), ("allowed", match[3]), ("requested", match[4] or ""))
        if (size := read_size(_binary(raw)))
    }
    other = sizes.pop("other", None)
    details: tuple[tuple[str, Any], ...] = (("pool", match[5]),) if match[5] else ()
    if other is not None:
        details += (("other_allocations_bytes", other.bytes),)
    if "allowed" in sizes and "allocated" in sizes and other is not None:
        sizes["free"] = Size(max(sizes["allowed"].bytes - sizes["allocated"].bytes - other.bytes, 0), sizes["allowed"].tolerance * 3)
    return Found("gpu-memory", "mps", None, sizes, (), details)


def _async(match: re.Match[str]) -> Found:
    """The driver's pooled allocator (``backend:cudaMallocAsync``): it prints what is allocated, never what its pool keeps."""
    named = zip(("allocated", "requested", "capacity", "free", "allowed"), match.groups()[1:], strict=True)
    sizes = {name: size for name, raw in named if raw and (size := read_size(raw)) is not None}
    if "allowed" in sizes and sizes["allowed"].bytes >= sizes["capacity"].bytes:
        del sizes["allowed"]
    return Found("gpu-memory", "cuda", int(match[1]), sizes, details=(("allocator", "cudaMallocAsync"),))


def _binary(text: str) -> str:
    """``17.50GB`` as ``17.50GiB``: MPSAllocator.h format_size divides by 1024 and prints KB, MB and GB."""
    return re.sub(r"(?<=[KMGT])B$", "iB", text, flags=re.IGNORECASE)


def _first(pattern: re.Pattern[str], text: str) -> Size | None:
    match = pattern.search(text)
    return None if match is None else read_size(next(g for g in match.groups() if g is not None))


def _processes(squeezed: str) -> tuple[Process, ...]:
    out: list[Process] = []
    for match in _OTHER.finditer(squeezed):
        size = read_size(match[2])
        out.append(Process(int(match[1]), size.bytes if size else None))
        if len(out) >= 64:
            break
    if (own := _OWN.search(squeezed)) is not None and (size := read_size(own[1])) is not None:
        out.append(Process(None, size.bytes, own=True))
    return tuple(out)


def reserved_unallocated(sizes: dict[str, Size]) -> Size | None:
    """Reserved minus allocated (and private pools), as printed or from the old texts' reserved total."""
    if "reserved_unallocated" in sizes:
        return sizes["reserved_unallocated"]
    if "reserved_total" in sizes and "allocated" in sizes:
        total, allocated = sizes["reserved_total"], sizes["allocated"]
        return Size(max(total.bytes - allocated.bytes, 0), total.tolerance + allocated.tolerance)
    return None
