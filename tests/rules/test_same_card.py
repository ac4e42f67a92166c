"""Ranks that meet on the first card, against neighbours that belong to someone else."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose

ERROR = (
    "{rank}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU {gpu} has a total capacity of 79.11 GiB of which 17.00 MiB is free. "
    "{others}Including non-PyTorch memory, this process has 9.70 GiB memory in use. Of the allocated memory 9.20 GiB is allocated by PyTorch, and 50.00 MiB is "
    "reserved by PyTorch but unallocated.\n"
)
SEVEN = "".join(f"Process {pid} has 9.80 GiB memory in use. " for pid in range(11, 18))
ONE = "Process 11 has 69.20 GiB memory in use. "


@pytest.mark.parametrize(
    ("rank", "gpu", "others", "first"),
    [("[rank7]: ", 0, SEVEN, "ranks-on-one-gpu"), ("[rank7]: ", 0, ONE, "other-process"), ("[rank7]: ", 7, ONE, "other-process")],
)
def test_equal_processes_beside_a_later_rank_on_the_first_card_are_ranks(rank: str, gpu: int, others: str, first: str) -> None:
    loads = f'{rank}  File "train.py", line 33, in main\n{rank}    ckpt = torch.load("optimizer.pt", map_location="cuda")\n' if others == SEVEN else ""
    report = diagnose([("error.txt", loads + ERROR.format(rank=rank, gpu=gpu, others=others))])
    assert report.findings[0].cause == first
    assert first == "other-process" or "free-other-process" not in [s.technique for s in report.plan.steps]
