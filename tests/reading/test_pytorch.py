"""Every out-of-memory text of PyTorch gives its counters, however it is wrapped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.reading import read
from advisor.reading.pytorch import read_failure
from reading.failure_texts import ADVICE_22, GIB, MIB, NEW, VERSIONS

BACKENDS = {"hip": "hip", "xpu": "xpu", "npu": "npu"}


@pytest.mark.parametrize("name", VERSIONS)
def test_every_version_gives_its_counters(name: str) -> None:
    failure = read([("error.txt", VERSIONS[name])]).evidence.failure
    assert failure is not None
    assert (failure.kind, failure.gpu, failure.backend) == ("gpu-memory", 1, BACKENDS.get(name, "cuda"))
    assert failure.requested_bytes == round(2.25 * GIB)
    assert failure.capacity_bytes == round(31.75 * GIB)
    assert failure.free_bytes == GIB
    assert failure.allocated_bytes == round(27.5 * GIB)
    assert failure.reserved_unallocated_bytes == round(2.5 * GIB)
    assert failure.reserved_bytes == 30 * GIB
    assert failure.tolerance("requested") > 0


@pytest.mark.parametrize("name", VERSIONS)
@settings(deadline=None)
@given(width=st.integers(min_value=40, max_value=200))
def test_a_terminal_may_wrap_anywhere(name: str, width: int) -> None:
    text = VERSIONS[name]
    wrapped = "\n".join(text[i : i + width] for i in range(0, len(text), width))
    failure = read([("error.txt", wrapped)]).evidence.failure
    assert failure is not None and failure.kind == "gpu-memory"
    assert (failure.requested_bytes, failure.capacity_bytes, failure.free_bytes) == (round(2.25 * GIB), round(31.75 * GIB), GIB)


def test_private_pools_are_part_of_the_printed_allocation() -> None:
    # c10/cuda/CUDACachingAllocator.cpp prints allocated_bytes + allocated_in_private_pools
    text = NEW.format(
        error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="", private="with 3.50 GiB allocated in private pools (e.g., CUDA Graphs), "
    )
    failure = read([("e", text)]).evidence.failure
    assert failure is not None
    assert failure.private_pool_bytes == round(3.5 * GIB)
    assert failure.allocated_bytes == 24 * GIB
    assert failure.reserved_bytes == 30 * GIB


def test_a_per_process_cap_is_read() -> None:
    text = NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes="", allowed="16.00 GiB allowed; ", private="")
    failure = read([("e", text)]).evidence.failure
    assert failure is not None and failure.allowed_bytes == 16 * GIB


def test_apples_own_accounting() -> None:
    found = read_failure(
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.25 GiB, other allocations: 384.00 MiB, max allowed: 18.13 GiB). Tried to "
        "allocate 1.00 GiB on private pool. "
        "Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."
    )
    assert found is not None and found.backend == "mps"
    assert found.sizes["allocated"].bytes == round(17.25 * GIB)
    assert found.sizes["allowed"].bytes == round(18.13 * GIB)
    assert dict(found.details)["other_allocations_bytes"] == 384 * MIB


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call", "runtime"),
        ("torch.AcceleratorError: CUDA error: out of memory", "runtime"),
        ("RuntimeError: CUDA driver error: out of memory", "driver"),
        ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:663", "runtime"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cudnn"),
        ("RuntimeError: CUDA failed with error out of memory", "runtime"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "triton"),
    ],
)
def test_driver_failures_print_no_counters(text: str, driver: str) -> None:
    failure = read([("e", text)]).evidence.failure
    assert failure is not None
    assert (failure.kind, dict(failure.details)["driver"], failure.requested_bytes) == ("gpu-driver", driver, None)


def test_the_host_allocator_is_not_the_card() -> None:
    text = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "68719476736 bytes. Error code 12 (Cannot allocate memory)"
    )
    failure = read([("e", text)]).evidence.failure
    assert failure is not None and (failure.kind, failure.requested_bytes) == ("host-memory", 64 * GIB)


def test_an_overflowing_size_is_no_memory_failure() -> None:
    failure = read([("e", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.")]).evidence.failure
    assert failure is not None and failure.kind == "not-memory"


def test_counters_that_no_card_has_are_not_used() -> None:
    reading = read(
        [
            (
                "e",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 99999999999999999999.00 GiB. GPU 0 has a total capacity of 0 bytes "
                "of which -1 bytes is free.",
            )
        ]
    )
    assert reading.evidence.failure is None
    assert reading.state == "unreadable" and reading.why


def test_the_same_failure_printed_twice_is_one() -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    loss.backward()\n'
    text = VERSIONS["2.5"] + "\n" + trace + VERSIONS["2.5"]
    failures = read([("e", text)]).evidence.failures
    assert len(failures) == 1 and len(failures[0].frames) == 1


def test_the_constant_advice_is_marked_as_such() -> None:
    found = read_failure(VERSIONS["2.5"])
    assert found is not None and ("advice", "constant") in found.details and ADVICE_22


def test_apples_text_may_end_after_its_limits() -> None:
    # aten/src/ATen/mps/MPSAllocator.mm, with a line break before "Tried to allocate", as a terminal shows it
    text = "RuntimeError: MPS backend out of memory (MPS allocated: 9.48 GiB, other allocations: 480.00 KiB, max allowed: 9.47 GiB).\n"
    for tail in ("", "Tried to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit\n"):
        failure = read([("error.txt", text + tail)]).evidence.failure
        assert failure is not None and failure.backend == "mps"
        assert failure.requested_bytes == (256 if tail else None)


def test_apple_prints_binary_sizes_with_decimal_names() -> None:
    # ATen/mps/MPSAllocator.h format_size divides by 1073741824 and prints " GB"
    text = (
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 384.00 MB, max allowed: 18.13 GB). Tried to allocate 1.50 GB "
        "on private pool."
    )
    failure = read([("e", text)]).evidence.failure
    assert failure is not None and failure.allocated_bytes == round(17.5 * GIB) and failure.requested_bytes == round(1.5 * GIB)
    assert dict(failure.details)["other_allocations_bytes"] == 384 << 20
    buffer = read([("e", "RuntimeError: Invalid buffer size: 20.00 GB\n")]).evidence.failure
    assert buffer is not None and buffer.requested_bytes == 20 * GIB
