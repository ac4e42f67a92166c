"""Words about a failure above its message are no failure of their own; where there is no message they are all there is."""

from __future__ import annotations

import pytest

from advisor.reading import read

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 100.00 MiB is free. "
    "Of the allocated memory 22.90 GiB is allocated by PyTorch, and 60.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    "words",
    [
        "I get CUDA out of memory training with the HF Trainer on a 24 GB 3090. I use bf16.\n",
        "I get CUDA out of memory:\n",
        "Hello,\nit runs into CUDA out of memory as soon as it starts.\n\nHere is the error:\n",
        "CUDA out of memory on my 3090\n",
    ],
)
def test_the_message_counts_and_not_the_words_above_it(words: str) -> None:
    evidence = read([("post.txt", words + MESSAGE)]).evidence
    assert len(evidence.failures) == 1
    assert evidence.failure is not None
    assert evidence.failure.allocated_bytes == round(22.90 * 2**30)


def test_words_in_another_file_count_no_more() -> None:
    evidence = read([("a-post.txt", "I get CUDA out of memory on a 3090.\n"), ("b-error.txt", MESSAGE)]).evidence
    assert evidence.failure is not None
    assert evidence.failure.where.startswith("b-error.txt")


def test_words_alone_are_the_failure() -> None:
    failure = read([("post.txt", "I get CUDA out of memory on a 3090.\n")]).evidence.failure
    assert failure is not None
    assert failure.kind == "gpu-memory"


def test_an_exceptions_own_line_stays_beside_a_message() -> None:
    text = f"[rank0]: {MESSAGE}\n[rank1]: RuntimeError: CUDA error: out of memory\n"
    assert {failure.rank for failure in read([("log.txt", text)]).evidence.failures} == {0, 1}


@pytest.mark.parametrize(
    "words",
    [
        "I read that 'No executable batch size found' means that auto_find_batch_size gave up.",
        "What does No executable batch size found, reached zero. mean?",
        'The docs say "No or negligible GPU memory available for fused cross entropy." is raised when the card is full.',
    ],
)
def test_a_librarys_words_that_are_only_spoken_about_are_no_failure(words: str) -> None:
    assert read([("post.txt", words)]).evidence.failure is None


def test_a_librarys_words_as_it_prints_them_are_one() -> None:
    failure = read([("log.txt", "RuntimeError: No executable batch size found, reached zero.")]).evidence.failure
    assert failure is not None
    assert dict(failure.details)["what"] == "one sample"
