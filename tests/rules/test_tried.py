"""Two tries of one switch, as people write them: on one line, on two, with the alternative's name, before and after a stage."""

from __future__ import annotations

import pytest

from advisor.evidence import Evidence, Line
from advisor.rules import tried
from advisor.units import GIB


def _evidence(text: str) -> Evidence:
    return Evidence(lines=tuple(Line(f"log.txt:{n}", line) for n, line in enumerate(text.split("\n"), 1)))


@pytest.mark.parametrize(
    ("text", "switch", "other", "on", "off"),
    [
        ("With cpu_offload=True a step takes 41 s at 12 GB of 80 GB; without the offload it is 2.3 s/it and 38 GB.", tried.OFFLOAD, "", 12, 38),
        ("peak with checkpointing 31.2 GiB\npeak without checkpointing 31.2 GiB", tried.CHECKPOINTING, "", 31.2, 31.2),
        ("gradient_checkpointing=True: 21.3 GB\ngradient_checkpointing=False: 40.1 GB", tried.CHECKPOINTING, "", 21.3, 40.1),
        ("with offload: 12 GB, without: 38 GB", tried.OFFLOAD, "", 12, 38),
        ("bf16: peak 38.1 GiB, 9200 tps\nfloat8: peak 38.4 GiB, 12800 tps", tried.FP8, tried.SIXTEEN, 38.4, 38.1),
    ],
)
def test_both_tries_are_found(text: str, switch: str, other: str, on: float, off: float) -> None:
    both = tried.pair(_evidence(text), switch, other)
    assert both is not None
    assert both.on.memory == round(on * GIB)
    assert both.off.memory == round(off * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "cpu_offload: true\nmax allocated 12 GB",
        "With offload 12 GB are used.\nA\nB\nC\nD\nThe checkpoint has 31 GB.",
        "It is out of memory without offload.",
        "With offload the host takes 120 GB. Without offload the host takes 20 GB.",
        "With offload I expected 10 GB. Without offload I expected 30 GB.",
        "With offload 3 GB free, without offload 6 GB free.",
        "With offload 12 GB and 41 s a step. Loading takes 38 GB and 90 s.",
        "With offload it holds 12 GB. It is not clear why rank 1 holds 38 GB.",
    ],
)
def test_one_try_is_none(text: str) -> None:
    assert tried.pair(_evidence(text), tried.OFFLOAD) is None


def test_before_and_after_a_stage() -> None:
    both = tried.before_after(_evidence("before prepare: torch.bfloat16 13.5 GB\nafter prepare: torch.float32 27.0 GB"), "prepare")
    assert both is not None
    assert (both[0].memory, both[1].memory) == (round(13.5 * GIB), 27 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "before prepare: 13.5 GB, after prepare: 27.0 GB",
        "before prepare it is 13.5 GB, after it 27.0 GB",
        "before prepare: 13.5 GB\nafter: 27.0 GB",
    ],
)
def test_forms_of_before_and_after(text: str) -> None:
    both = tried.before_after(_evidence(text), "prepare")
    assert both is not None and both[1].memory == 27 * GIB


@pytest.mark.parametrize(
    "text",
    [
        "before prepare: 13.5 GB\nafter the first step: 27.0 GB",
        "before prepare 13.5 GB, and after a step of training 27.0 GB",
        "before prepare: 13.5 GB\nstep 1\nstep 2\nafter: 27.0 GB",
    ],
)
def test_after_something_else_closes_nothing(text: str) -> None:
    assert tried.before_after(_evidence(text), "prepare") is None


def test_a_stage_without_an_end_is_none() -> None:
    assert tried.before_after(_evidence("before prepare: 13.5 GB\nstep 1 27.0 GB"), "prepare") is None
