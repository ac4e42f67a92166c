"""Streams of lines: prefixes, control codes, encodings, bounds."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from advisor.reading import read
from advisor.reading.lines import excerpt, is_binary
from advisor.reading.prefixes import split, strip_control
from reading.failure_texts import VERSIONS

FAILURE = VERSIONS["2.5"]


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[rank3]: RuntimeError: x", 3, "RuntimeError: x"),
        ("(WorkerDict pid=9021) RuntimeError: x", None, "RuntimeError: x"),
        ("(rank5 pid=3005) 2025-02-01 00:00:05 INFO step 5", 5, "INFO step 5"),
        ("(RayTrainWorker pid=1, ip=10.0.0.3) [rank7]:   File", 7, "  File"),
        ("[default0]:hello", 0, "hello"),
        ("[1,12]<stderr>:hello", 12, "hello"),
        ("2025-02-01T00:00:05.123456789Z stderr F hello", None, "hello"),
        ("[2025-02-01 00:00:05,123] [INFO] [utils.py:781:see_memory_usage] x", None, "[INFO] [utils.py:781:see_memory_usage] x"),
        ('ERROR 04-14 03:35:21 [core.py:386]   File "x.py", line 2, in f', None, '  File "x.py", line 2, in f'),
        ("[rank0]:[W1016 08:12:01.123456789 ProcessGroupNCCL.cpp:1250] Warning", 0, "ProcessGroupNCCL.cpp:1250] Warning"),
        ("Feb  1 00:00:05 <host> kernel: x", None, "kernel: x"),
        ("no prefix here", None, "no prefix here"),
    ],
)
def test_prefixes_come_off(line: str, rank: int | None, text: str) -> None:
    prefix = split(line)
    assert (prefix.rank, prefix.text) == (rank, text)


def test_times_order_lines() -> None:
    early, late = split("2025-02-01 00:00:05,100 x").stamp, split("[2025-02-01 00:00:06] x").stamp
    assert early is not None and late is not None and 0.5 < late - early < 1


def test_control_codes_are_stripped_with_and_without_their_escape() -> None:
    assert strip_control("\x1b[36m(WorkerDict pid=1)\x1b[0m ok\ufeff") == "(WorkerDict pid=1) ok"
    assert strip_control("[36m(WorkerDict pid=1)[0m ok") == "(WorkerDict pid=1) ok"


@pytest.mark.parametrize("encode", ["utf-8", "utf-8-sig", "utf-16", "crlf", "labels", "quoted"])
def test_a_failure_is_found_in_any_dress(encode: str) -> None:
    text = f"start of the run\n{FAILURE}\nlast line\n"
    data = text.encode(encode) if encode.startswith("utf") else text.encode()
    if encode == "crlf":
        data = text.replace("\n", "\r\n").encode()
    if encode == "labels":
        data = "".join(f"{i % 4}: {line}\n" for i, line in enumerate(["a", "b", "c", "d", FAILURE, "e", "f"])).encode()
    if encode == "quoted":
        data = f"> {FAILURE}\n".encode()
    failure = read([("log.txt", data)]).evidence.failure
    assert failure is not None and failure.requested_bytes == round(2.25 * 2**30)
    if encode == "labels":
        assert failure.rank == 0


def test_a_progress_bar_that_redraws_itself_keeps_its_last_state() -> None:
    bar = "".join(f"\r {n}%|###| {n}/100 [00:{n:02d}<01:00]" for n in range(1, 60))
    found = excerpt("log.txt", [f"{bar}Traceback (most recent call last):\n".encode(), FAILURE.encode()])
    assert any("59/100" in line.text for line in found.lines)
    assert len(found.lines) < 12


def test_a_failure_across_two_chunks_is_one() -> None:
    data = f"x\n{FAILURE}\ny\n".encode()
    found = excerpt("log.txt", [data[:40], data[40:90], data[90:]])
    assert [line.number for line in found.lines] == [1, 2, 3]


def test_binary_is_said_to_be_binary() -> None:
    assert is_binary(b"\x80\x04\x95\x00\x00")
    reading = read([("snapshot.bin", bytes(range(256)) * 40)])
    assert reading.state == "unreadable" and "not a text" in (reading.why or "")


def test_repeats_are_counted_and_progress_is_kept_first_and_last() -> None:
    lines = "".join(f"step {n} loss {1 / (n + 1):.4f} memory_allocated {n * 0.001:.3f} GiB\n" for n in range(5000))
    found = excerpt("log.txt", [lines.encode()])
    assert len(found.lines) < 250
    assert found.lines[0].count == 5000
    assert "step 0 " in found.lines[0].text and "step 4999 " in found.lines[-1].text


def _chunks(kind: str, megabytes: int) -> list[bytes]:
    """A log of progress, or of lines that are all different, with a failure in its middle."""
    rng = random.Random(3)
    words = ["".join(rng.choice("abcdefghij") for _ in range(7)) for _ in range(3000)]

    def row(n: int) -> str:
        if kind == "progress":
            return f"[rank{n % 8}]: step {n} loss {rng.random():.4f} reserved {70 + rng.random():.2f}GiB\n"
        return " ".join(rng.choices(words, k=12)) + "\n"

    block = "".join(row(n) for n in range(10_000)).encode()
    half = [block] * (megabytes * 2**19 // len(block))
    return [*half, FAILURE.encode() + b"\n", *half]


@pytest.mark.parametrize("kind", ["progress", "words"])
def test_a_long_log_is_read_quickly(kind: str) -> None:
    chunks = _chunks(kind, 30)
    started = time.process_time()
    found = excerpt("log.txt", chunks)
    assert any("Tried to allocate" in line.text for line in found.lines)
    assert time.process_time() - started < 4  # 0.3 s for progress, 0.9 s where every line is new


@pytest.mark.parametrize("kind", ["progress", "words"])
def test_a_long_log_needs_little_memory(kind: str) -> None:
    chunks = _chunks(kind, 5)
    tracemalloc.start()
    excerpt("log.txt", chunks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20
