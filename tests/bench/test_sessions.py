"""Fifty people at once: each opens a page by a link and moves a setting again and again, over real WebSockets, as a browser does.

A third each: Explore and Plan, where each move is another run, and Diagnose, where each move ticks other changes. They come and think as people do,
not in turn.
No error, a median rerun of at most 300 ms, at most 600 MB in the server, and torch never loaded in it.
"""

import asyncio
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

websockets = pytest.importorskip("websockets.asyncio.client", reason="no websockets: pip install websockets")
ROOT = Path(__file__).resolve().parents[2]
SESSIONS = int(os.environ.get("ADVISOR_SESSIONS", "50"))
RERUNS = 4
THINKING = 5.0, 25.0  # seconds that a person looks at a result before the next move: evenly between these, so that moves fall together as they do
MEDIAN_SECONDS = 0.3
MEMORY_BYTES = 600 * 1024 * 1024
QUERY = "v=1&model.name=Qwen/Qwen2.5-7B&hardware.gpu=h100-80gb&batch.micro_batch={micro}&batch.seq_len={seq}"
PAGES = ("explore", "plan", "")  # the last is Diagnose
FAILED = "&error=gpu-memory&error.requested=2.50GiB&error.capacity=79.10GiB&error.allocated=77.03GiB&ticks={ticks}"
TICKS = ("gradient-checkpointing", "chunked-loss", "gradient-checkpointing,chunked-loss")


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "advisor.cli", "ui", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                break
            time.sleep(0.25)
        else:
            pytest.fail("the server did not answer within a minute")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


async def rerun(socket: object, query: str, page: str) -> tuple[float, list[str]]:
    """Ask for a run of the page with these settings; its seconds, and the errors that it showed."""
    message = BackMsg()
    message.rerun_script.query_string = query
    message.rerun_script.page_name = page
    began, errors = time.monotonic(), []
    await socket.send(message.SerializeToString())  # type: ignore[attr-defined]
    while True:
        answer = ForwardMsg.FromString(await asyncio.wait_for(socket.recv(), 60))  # type: ignore[attr-defined]
        if answer.WhichOneof("type") == "delta" and answer.delta.new_element.HasField("exception"):
            errors.append(answer.delta.new_element.exception.message)
        if answer.WhichOneof("type") == "script_finished" and answer.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
            return time.monotonic() - began, errors


def moved(page: str, number: int, move: int) -> str:
    """What the address bar holds after so many moves: another batch, or on Diagnose other ticks of the same run."""
    run = number if page == "" else number + move
    query = QUERY.format(micro=1 + run % 8, seq=1024 * (1 + (2 * number + run) % 16))
    return query if page else query + FAILED.format(ticks=TICKS[move % len(TICKS)])


async def person(port: int, number: int) -> tuple[list[float], list[str]]:
    taken, errors, chance = [], [], random.Random(number)
    page = PAGES[number % len(PAGES)]
    await asyncio.sleep(chance.uniform(0, THINKING[1]))
    async with websockets.connect(f"ws://127.0.0.1:{port}/_stcore/stream", subprotocols=["streamlit"], max_size=None) as open_socket:
        for move in range(RERUNS + 1):
            query = moved(page, number, move)
            seconds, said = await rerun(open_socket, query, page)
            errors += said
            if move:  # the first is the page's first view
                taken.append(seconds)
            await asyncio.sleep(chance.uniform(*THINKING))
    return taken, errors


async def all_of_them(port: int) -> list[tuple[list[float], list[str]]]:
    return await asyncio.gather(*(person(port, number) for number in range(SESSIONS)))


def test_fifty_sessions(server: tuple[int, int]) -> None:
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip(f"other programs keep this machine busy (load {os.getloadavg()[0]:.1f}): latencies would be theirs")
    port, pid = server
    asyncio.run(warmed(port))
    found = asyncio.run(all_of_them(port))
    taken = [seconds for times, _ in found for seconds in times]
    status = Path(f"/proc/{pid}/status").read_text()
    memory = 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    loaded = Path(f"/proc/{pid}/maps").read_text()
    print(f"{SESSIONS} sessions: median {statistics.median(taken) * 1000:.0f} ms, worst {max(taken) * 1000:.0f} ms, memory {memory / 2**20:.0f} MB")
    assert [error for _, errors in found for error in errors] == []
    assert len(taken) == SESSIONS * RERUNS
    assert statistics.median(taken) <= MEDIAN_SECONDS
    assert memory <= MEMORY_BYTES
    assert "libtorch" not in loaded


async def warmed(port: int) -> None:
    """The server's own first run, which loads what every page needs."""
    async with websockets.connect(f"ws://127.0.0.1:{port}/_stcore/stream", subprotocols=["streamlit"], max_size=None) as first:
        await rerun(first, QUERY.format(micro=1, seq=1024), "explore")
