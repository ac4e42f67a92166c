"""The server loads what a page needs before it answers, and builds the first diagnosis while the first page is read."""

import argparse
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from advisor.commands import ui
from advisor.views import warming

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_built_before_a_page_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(warming, "LATER", 0.0)
    monkeypatch.setattr(warming, "scored", lambda: built.append("accuracy"))
    monkeypatch.setattr("advisor.diagnosis.diagnose", lambda items: built.append(items[0][0]))
    warming._SEEN.clear()
    warming.begin()
    time.sleep(0.2)
    assert built == []
    warming.seen()
    for _ in range(200):
        if len(built) == 2:
            break
        time.sleep(0.05)
    assert built[1] == "accuracy"


def test_the_server_starts_by_the_command_that_loads_first(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = ui.command(argparse.Namespace(port=port, address=None, streamlit=[]))
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                    assert answer.status == 200
                    break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, server.stderr.read() if server.stderr else ""
                time.sleep(0.25)
        else:
            pytest.fail("no answer within a minute")
        assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.terminate()
        server.communicate(timeout=20)
