"""Reading ends by the clock, uses what it has, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.reading import read, sources
from advisor.reading.deadline import Deadline
from reading.failure_texts import VERSIONS


def test_a_limit_stays_hit_and_is_said() -> None:
    limit = Deadline(0.0)
    time.sleep(0.001)
    assert limit.passed()
    assert list(limit.until([b"a"])) == []
    assert limit.note is not None
    assert not Deadline(None).passed()


def test_one_text_may_not_take_everything() -> None:
    whole = Deadline(8.0)
    assert whole.part().seconds == 6.0
    whole.started -= 7.0
    left = whole.part().seconds
    assert left is not None
    assert 0.9 < left <= 1.0


def test_a_slow_text_is_cut_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: Path) -> Iterator[bytes]:
        yield VERSIONS["2.5"].encode() + b"\n"
        if path.name == "slow.log":
            for number in range(1000):
                time.sleep(0.1)
                yield b"step %d\n" % number

    monkeypatch.setattr(sources, "_file_chunks", slow)
    for name in ("slow.log", "next.log"):
        (tmp_path / name).write_text("x")
    started = time.monotonic()
    evidence = read([(name, tmp_path / name) for name in ("slow.log", "next.log")], seconds=2.0).evidence
    assert time.monotonic() - started < 10
    assert evidence.failures, "what came before the limit is used"
    notes = {source.name: source.note for source in evidence.sources}
    assert "within 1.5 s" in (notes["slow.log"] or "")
    assert notes["next.log"] is None


def test_what_comes_after_the_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x")
    reading = read([("a.log", tmp_path / "a.log")], seconds=-1.0)
    assert "time" in (reading.evidence.sources[0].note or "")
