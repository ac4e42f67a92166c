"""Process tables and printed devices: contexts of other ranks, ranks that were started together, and what only looks like either."""

from __future__ import annotations

from advisor.evidence import Device, Evidence, Failure, Line, Process
from advisor.rules import processes
from advisor.units import GIB, MIB


def _card(*sizes: int, first: int = 100, step: int = 1, name: str = "python") -> Device:
    held = tuple(Process(first + n * step, size, name) for n, size in enumerate(sizes))
    return Device("smi.txt:1", 0, None, sum(sizes), 80 * GIB, held)


def test_small_processes_beside_a_large_one_are_contexts() -> None:
    assert processes.contexts(Evidence(devices=(_card(26 * GIB, 871 * MIB, 871 * MIB, 871 * MIB),)))


def test_workers_of_other_sizes_and_the_desktop_are_none() -> None:
    assert processes.contexts(Evidence(devices=(_card(26 * GIB, 871 * MIB, 300 * MIB, 90 * MIB),))) is None
    assert processes.contexts(Evidence(devices=(_card(26 * GIB, 871 * MIB, 871 * MIB, name="/usr/lib/xorg/Xorg"),))) is None


def test_processes_started_together_on_one_card() -> None:
    assert processes.all_here(Evidence(devices=(_card(17 * GIB, 17 * GIB, 17 * GIB),)))
    assert processes.all_here(Evidence(devices=(_card(17 * GIB, 17 * GIB, step=5000),))) is None


def _lines(*texts: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"log.txt:{n}", text) for n, text in enumerate(texts, 1)))


def test_ranks_that_print_the_same_device() -> None:
    assert processes.same_device_printed(_lines("rank 0 device cuda:0", "rank 1 device cuda:0"))
    assert processes.same_device_printed(_lines("rank 0 device cuda:0", "rank 1 device cuda:1")) is None
    assert processes.same_device_printed(_lines("rank 0 device cuda:0", "rank 8 device cuda:0")) is None
    assert processes.same_device_printed(_lines("CUDA_VISIBLE_DEVICES=0,1", "rank 0 device cuda:0", "rank 1 device cuda:0"))


def test_ranks_that_each_see_one_card_rightly_print_the_same_number() -> None:
    for isolated in ("CUDA_VISIBLE_DEVICES=1 python train.py", "srun --gpus-per-task=1 python train.py", "Started a local Ray instance."):
        assert processes.same_device_printed(_lines(isolated, "rank 0 device cuda:0", "rank 1 device cuda:0")) is None


def _in_error(*pids: int, size: int = 12 * GIB) -> Evidence:
    others = tuple(Process(pid, size + n * GIB, None) for n, pid in enumerate(pids))
    return Evidence(failures=(Failure(kind="gpu-memory", where="error.txt:1", text="CUDA out of memory.", gpu=0, processes=others),))


def test_an_error_lists_the_pids_of_one_launch() -> None:
    assert processes.started_together(_in_error(70211, 70213, 70219))
    assert processes.started_together(_in_error(70211, 91544, 120003)) is None
    assert processes.started_together(_in_error(70211, 70212)) is None
    assert processes.started_together(_in_error(70211, 70212, 70213, size=300 * MIB)) is None
