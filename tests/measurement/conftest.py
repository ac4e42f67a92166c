"""Torch on one thread: the tests share a small machine. And a process beside them, which runs what needs one of its own."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ask() -> Iterator[Callable[[str], dict[str, Any]]]:
    """A process that has imported torch, and forks one for each ``module.function`` that is asked for."""
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("forking.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        asked, told = child.stdin, child.stdout

        def answer(name: str) -> dict[str, Any]:
            asked.write(f"{name}\n")
            asked.flush()
            found: dict[str, Any] = json.loads(told.readline())
            return found

        yield answer
        asked.close()
