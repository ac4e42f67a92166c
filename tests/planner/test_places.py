"""An action's lines are for the place where the job ran, with the processes that the error names."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose
from advisor.report import Step

OTHER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 2 has a total capacity of 23.65 GiB of which 50.00 MiB is free. "
    "Process 4711 has 18.90 GiB memory in use. Including non-PyTorch memory, this process has 4.60 GiB memory in use. "
    "Of the allocated memory 4.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
)
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=12345.0. Some of the step tasks have been OOM Killed.\n"
KUBERNETES = "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\nkubectl describe pod trainer-0\n"


def first(text: str) -> Step:
    return diagnose([("log.txt", text)]).plan.steps[0]


def test_another_process_is_named_by_its_id() -> None:
    step = first(OTHER)
    lines = [line for text in step.settings.values() for line in text]
    assert step.technique == "free-other-process"
    assert any(line.startswith("kill 4711") for line in lines) and any("--id=2" in line for line in lines)
    assert not any("PID" in line.split("#")[0] for line in lines)


def test_a_process_of_nvidia_smi_is_named_where_it_cannot_be_the_failing_one() -> None:
    table = """| GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A      1511      G   /usr/lib/xorg/Xorg                            212MiB |
|    0   N/A  N/A     99120      C   python                                      21680MiB |
"""
    head = "|   0  NVIDIA GeForce RTX 4090        Off |   00000000:01:00.0  On |                  Off |\n"
    head += "|  0%   38C    P8             22W /  450W |   21933MiB /  24564MiB |      0%      Default |\n"
    old = "RuntimeError: CUDA out of memory. Tried to allocate 1.20 GiB (GPU 0; 23.64 GiB total capacity; 1.02 GiB already allocated; 1.11 GiB free; "
    lines = [line for text in first(f"{head}{table}{old}1.05 GiB reserved in total by PyTorch)").settings.values() for line in text]
    assert any(line.startswith("kill 99120 ") for line in lines) and not any("1511" in line for line in lines)


@pytest.mark.parametrize(("text", "place", "says"), [(SLURM, "slurm", "--mem="), (KUBERNETES, "kubernetes", "limits")], ids=["slurm", "kubernetes"])
def test_the_hosts_limit_is_that_of_the_place_that_was_seen(text: str, place: str, says: str) -> None:
    settings = first(text).settings
    assert any(says in line for line in settings[place])
    assert not settings.keys() & ({"slurm", "kubernetes", "docker", "docker compose"} - {place})


def test_ranks_on_one_card_are_told_to_choose() -> None:
    step = first("node0:41:52 [0] init.cc:880 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000\n")
    assert any("torch.cuda.set_device(" in line for text in step.settings.values() for line in text)
