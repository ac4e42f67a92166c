"""Prose that speaks of running out of memory is no failure unless it says that it happened."""

from __future__ import annotations

import pytest

from advisor.reading import read

WATCHDOG = (
    "[rank2]:[E ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
HEARSAY = [
    'Many posts say a "CUDA out of memory" error needs a smaller batch.',
    "This is not a CUDA out of memory problem, there is plenty of room on every card.",
    "The documentation of torch recommends expandable segments when CUDA out of memory comes up.",
    "CUDA out of memory can be avoided with gradient checkpointing, which I already use here.",
    "It never runs out of memory on a single node, and I have watched it for hours.",
]
STATED = [
    'After some steps my script dies with "CUDA out of memory" on rank 3.',
    "Every time I start it on two cards it throws CUDA out of memory at once.",
    "I read the docs about it, but still I get CUDA out of memory after 100 steps.",
]


@pytest.mark.parametrize("sentence", HEARSAY, ids=range(len(HEARSAY)))
def test_what_is_only_mentioned_is_no_failure(sentence: str) -> None:
    assert not read([("letter.txt", sentence)]).evidence.failures
    beside = read([("letter.txt", f"{sentence} It hangs at the first all_gather:\n{WATCHDOG}")]).evidence.failures
    assert [failure.kind for failure in beside] == ["collective"]


@pytest.mark.parametrize("sentence", STATED, ids=range(len(STATED)))
def test_what_is_stated_is_one(sentence: str) -> None:
    assert [failure.kind for failure in read([("letter.txt", sentence)]).evidence.failures] == ["gpu-memory"]


@pytest.mark.parametrize("line", ["CUDA out of memory", "RuntimeError: CUDA out of memory. It is not known which of the tensors did not fit"])
def test_a_programs_message_is_one_whatever_its_words(line: str) -> None:
    assert read([("log.txt", line)]).evidence.failures
