"""Every reader with spoiled input: no exception, no input over two seconds of processor time, memory bounded.

200 inputs a reader here; ``ADVISOR_FUZZ=100000 pytest tests/bench/test_fuzz.py`` makes more, ``ADVISOR_FUZZ_SEED=17`` others. A failure names the
seed of its input.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from advisor.reading import read
from advisor.reading.snapshot.opcodes import RefusedError, scan
from advisor.reading.snapshot.summary import summarise
from advisor.reading.snapshot.unpickling import unpickle
from advisor.share import open_link
from bench import mutating

INPUTS = int(os.environ.get("ADVISOR_FUZZ", "200"))
SEED = int(os.environ.get("ADVISOR_FUZZ_SEED", "1"))
SECONDS = 2.0
GROWTH = 600 << 20  # bytes that the whole series may add to this process's peak

T = TypeVar("T")
pytestmark = pytest.mark.timeout(max(300, INPUTS))
TEXTS: tuple[Callable[[random.Random], mutating.Item], ...] = (
    mutating.text, mutating.yaml, mutating.json_, mutating.python, mutating.shell, mutating.notebook, mutating.summary, mutating.snapshot_json,
    mutating.safetensors, mutating.archive,
)  # fmt: skip


def _series(name: str, make: Callable[[random.Random], T], one: Callable[[T], object]) -> None:
    """One input after the other; the slowest is held to the limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(INPUTS):
        seed = f"{name}:{SEED}:{number}"
        made = make(random.Random(seed))
        started = time.process_time()
        try:
            one(made)
        except Exception as error:
            raise AssertionError(f"input {seed}: {type(error).__name__}: {error}") from error
        taken = time.process_time() - started
        assert taken < SECONDS, f"input {seed} took {taken:.1f} s"
    scale = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * scale < GROWTH


@pytest.mark.parametrize("make", TEXTS, ids=lambda f: f.__name__)
def test_reading_never_raises_or_hangs(make: Callable[[random.Random], mutating.Item]) -> None:
    _series(make.__name__, make, lambda item: read([item]))


def test_pickles_are_read_or_refused(tmp_path: Path) -> None:
    """In this process, where a hundred thousand can be tried: what passes the scan builds plain values and summarises, or is refused."""
    file = tmp_path / "s.pickle"

    def one(item: mutating.Item) -> None:
        try:
            scan(item[1])
            file.write_bytes(item[1])
            with file.open("rb") as handle:
                summarise(unpickle(handle))
        except RefusedError:
            pass

    _series("pickled", mutating.pickled, one)


def test_pickles_through_the_whole_reader() -> None:
    """A process each, so fewer."""
    for number in range(min(INPUTS // 20, 2000)):
        name, data = mutating.pickled(random.Random(f"whole:{SEED}:{number}"))
        assert read([(name, data)]).evidence.sources


def test_links_open_or_say_what_was_dropped() -> None:
    _series("link", mutating.link, open_link)
