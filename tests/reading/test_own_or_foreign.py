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


def test_a_process_without_which_the_card_has_no_room_for_pytorch_is_the_job() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 41.75 GiB. GPU 0 has a total capacity of 79.11 GiB of which {free} GiB is free. "
        "Process 99 has 59.00 GiB memory in use. Of the allocated memory {held} GiB is allocated by PyTorch, and 1.60 GiB is reserved by PyTorch but "
        "unallocated."
    )
    failure = read([("e", text.format(free="20.10", held="55.00"))]).evidence.failure
    assert failure is not None and failure.own_bytes == 59 * GIB  # 2.4 GiB beyond what is reserved: graphs and communicators
    assert int(str(dict(failure.details)["foreign_bytes"])) < 0.1 * GIB
    beside = read([("e", text.format(free="0.10", held="18.00"))]).evidence.failure
    assert beside is not None and beside.own_bytes is None  # 20 GiB are unlisted: room for this process beside the neighbour
