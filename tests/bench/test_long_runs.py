"""Lines of one thing repeated, beside words that readers look for: what makes a backtracking pattern hang. Each within two seconds of processor time."""

from __future__ import annotations

import time

import pytest

from advisor.reading import read

RUNS = (" ", "_", "\t", "1", "-", ".", "| ", "a/", 'File "', "(", "1 ", "MiB ")
WORDS = ("allocated", "| 0  NVIDIA A100 ", "peak", "user=", "100MiB / 200MiB |", "RuntimeError: CUDA out of memory. Tried to allocate ")
LENGTH = 8_000


@pytest.mark.parametrize("run", RUNS)
def test_a_long_run_is_read_at_once(run: str) -> None:
    read([("warm", "x")])
    for word in WORDS:
        started = time.process_time()
        read([("error.txt", word + run * (LENGTH // len(run)) + word + "\n")])
        assert time.process_time() - started < 2, (run, word)
