"""The process that an error lists may be the job itself; foreign memory is the remainder."""

from __future__ import annotations

from advisor.reading import read
from reading.failure_texts import GIB, NEW


def _details(processes: str) -> dict[str, object]:
    text = NEW.format(error="torch.OutOfMemoryError", capacity="capacity", processes=processes, allowed="", private="")
    failure = read([("e", text)]).evidence.failure
    assert failure is not None
    return dict(failure.details) | {"own": failure.own_bytes}


def test_a_single_process_line_in_a_container_is_the_job() -> None:
    told = _details("Process 3258 has 30.70 GiB memory in use. ")
    assert told["own"] == round(30.7 * GIB)
    assert told["foreign_bytes"] == round(31.75 * GIB) - GIB - round(30.7 * GIB)


def test_a_process_that_holds_far_more_than_pytorch_reserved_is_another() -> None:
    text = (
        "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 31.75 GiB of which 10.00 MiB is free. "
        "Process 77 has 25.00 GiB memory in use. Including non-PyTorch memory, this process has 6.70 GiB memory in use. "
        "Of the allocated memory 6.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
    )
    failure = read([("e", text)]).evidence.failure
    assert failure is not None
    assert failure.own_bytes == round(6.7 * GIB)
    foreign = dict(failure.details)["foreign_bytes"]
    assert abs(foreign - 25 * GIB) < 0.1 * GIB


def test_without_process_lines_the_remainder_is_estimated() -> None:
    told = _details("")
    assert told["own"] is None
    assert 0 <= int(str(told["foreign_bytes"])) < 0.5 * GIB
