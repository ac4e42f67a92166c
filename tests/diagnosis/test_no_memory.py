"""Failures that say nothing of memory are called so, and a mangled figure is no figure."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.rules.samples import trace

TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1827, OpType=ALLREDUCE, "
    "NumelIn=1048576, NumelOut=1048576, Timeout(ms)=1800000) ran for 1800912 milliseconds before timing out.\n"
)
ASSERT = "Indexing.cu:1290: indexSelectLargeIndex: Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered\n"
SCANNED = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.32 GiB (GPU 0; 14.76 GiB total capacity; 11.O9 GiB already allocated; 1.55 GiB free; "
    "12.61 GiB reserved in total by PyTorch)\n"
)


@pytest.mark.parametrize("text", [TIMEOUT, ASSERT])
def test_a_wait_in_vain_and_a_wrong_index_are_no_memory_errors(text: str) -> None:
    assert diagnose([("error.txt", text)]).verdict == "not-memory"


def test_a_figure_with_a_letter_in_it_is_not_read_as_its_last_digits() -> None:
    report = diagnose([("error.txt", SCANNED)])
    assert report.verdict == "ooms"
    assert "fragmentation" not in [f.cause for f in report.findings]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("OSError: [Errno 28] No space left on device\n", "not-memory"),
        ("RuntimeError: unable to write to file </torch_9_1>: No space left on device (28)\n", "ooms"),  # a tensor in /dev/shm
        ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!\n", "not-memory"),
        (
            "[rank0]: RuntimeError: NCCL error: unhandled cuda error\n[rank0]: Last error:\n[rank0]: Failed to CUDA calloc async 608 bytes\n",
            "ooms",
        ),
        ("ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.\n", "ooms"),
    ],
)
def test_what_a_short_text_says_of_memory(text: str, verdict: str) -> None:
    assert diagnose([("error.txt", text)]).verdict == verdict


@pytest.mark.parametrize(
    ("frame", "verdict"),
    [("multiprocessing/synchronize.py|__init__|sl = self._semlock = _multiprocessing.SemLock(", "ooms"), ("train.py|save|f.write(data)", "not-memory")],
)
def test_no_space_for_what_processes_share_is_shared_memory(frame: str, verdict: str) -> None:
    assert diagnose([("error.txt", trace(frame) + "OSError: [Errno 28] No space left on device\n")]).verdict == verdict
