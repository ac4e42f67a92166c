"""nvidia-smi's list alone: two programs that compute on a card, against a training beside what draws the screen."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose

CARD = (
    "|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |                    0 |\n"
    "| N/A   33C    P0             61W /  400W |   39112MiB /  40960MiB |      0%      Default |\n"
)


@pytest.mark.parametrize(
    ("kind", "name", "mib", "shared"),
    [
        ("C", "python3 -m vllm.entrypoints.api_server", 1810, True),
        ("G", "/usr/lib/xorg/Xorg", 4, False),
        ("G", "/usr/bin/gnome-shell", 412, False),
        ("C+G", "/opt/some/compositor", 90, False),
    ],
)
def test_a_second_program_is_one_that_computes(kind: str, name: str, mib: int, shared: bool) -> None:
    listed = f"|    0   N/A  N/A     12345      C   python train.py      37000MiB |\n|    0   N/A  N/A     22222      {kind}   {name}     {mib}MiB |\n"
    found = [finding.cause for finding in diagnose([("smi.txt", CARD + listed)]).findings]
    assert ("other-process" in found) is shared


@pytest.mark.parametrize(
    ("sentence", "left"),
    [
        ("nvidia-smi still shows 30 GB free when it crashes with CUDA out of memory.", False),
        ("I killed the notebook but nvidia-smi still shows 70 GB used, and the next run gives CUDA out of memory.", True),
        ("After I stopped the run the card is still not free, memory is still full: CUDA out of memory.", True),
    ],
)
def test_what_is_still_there_is_use_and_no_room(sentence: str, left: bool) -> None:
    found = [finding.cause for finding in diagnose([("letter.txt", sentence + "\n")]).findings]
    assert (found[:1] == ["other-process"]) is left
