"""Failures outside PyTorch's caching allocator: the driver's pool, MLX, notebooks whose kernel is gone."""

import pytest

from advisor.diagnosis import diagnose
from advisor.reading import read
from advisor.units import GIB

ASYNC = """torch.cuda.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of memory)
Currently allocated     : 54.14 GiB
Requested               : 686.41 MiB
Device limit            : 79.35 GiB
Free (according to CUDA): 27.19 MiB
PyTorch limit (set by user-supplied memory fraction)
                        : 17179869184.00 GiB
"""


def test_the_drivers_pool_prints_its_own_counters() -> None:
    report = diagnose([("error.txt", ASYNC)])
    failure = report.evidence.failure
    assert failure is not None
    assert (failure.gpu, failure.allowed_bytes) == (5, None)
    assert failure.allocated_bytes == pytest.approx(54.14 * GIB, rel=1e-3)
    assert failure.capacity_bytes == pytest.approx(79.35 * GIB, rel=1e-3)
    assert report.findings[0].cause == "fragmentation"  # some 24 GiB are neither allocated nor free


def test_a_full_driver_pool_is_not_fragmented() -> None:
    report = diagnose([("error.txt", ASYNC.replace("54.14", "78.10"))])
    assert not report.findings or report.findings[0].cause != "fragmentation"


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        ("libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: "
         "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", None),
        ("RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum allowed buffer size of 30150672384 bytes.",
         48736917632),
    ],
)  # fmt: skip
def test_mlx_says_it_in_metals_words(text: str, requested: int | None) -> None:
    failure = read([("error.txt", text)]).evidence.failure
    assert failure is not None
    assert (failure.kind, failure.backend, failure.requested_bytes) == ("gpu-memory", "mps", requested)


def test_a_session_that_used_all_ram_is_host_memory() -> None:
    report = diagnose([("said.txt", "Your session crashed after using all available RAM. I load Qwen2.5-7B in Colab.")])
    assert report.verdict == "ooms"
    assert report.findings[0].cause == "host-memory"


def test_a_dead_kernel_alone_decides_nothing() -> None:
    report = diagnose([("said.txt", "The Kernel crashed while executing code in the current cell or a previous cell.")])
    assert report.verdict == "incomplete"
    assert "kernel" in report.sentence


def test_xla_could_not_reserve() -> None:
    text = (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.07G at the bottom of memory. That was not possible. "
        "There are 8.83G free, 0B reserved, and 8.83G reservable.\n"
    )
    failure = read([("error.txt", text)]).evidence.failure
    assert failure is not None
    assert (failure.kind, failure.backend) == ("gpu-memory", "jax")
    assert failure.requested_bytes == pytest.approx(12.07 * GIB, rel=1e-3)
    assert failure.free_bytes == pytest.approx(8.83 * GIB, rel=1e-3)
