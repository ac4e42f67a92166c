"""The server loads what a page needs before it answers, and scores the published measurements when the first page has been read a while."""

import argparse
import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import weakref
from pathlib import Path

import pytest

from advisor.commands import ui
from advisor.views import warming

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_scored_before_a_page_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(warming, "LATER", 0.0)
    monkeypatch.setattr(warming, "scored", lambda: built.append("accuracy"))
    monkeypatch.setattr(warming, "settle", lambda: built.append("settled"))
    monkeypatch.setattr(warming, "tidy", lambda: built.append("tidied"))
    warming._SEEN.clear()
    warming.begin()
    time.sleep(0.2)
    assert built == []
    warming.seen()
    for _ in range(200):
        if len(built) == 3:
            break
        time.sleep(0.05)
    assert built == ["settled", "accuracy", "tidied"]


def test_what_sessions_leave_in_cycles_is_freed_now_and_then_and_not_after_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tomllib.loads((Path(ui.APP).parent / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert settings["runner"]["postScriptGC"] is False
    monkeypatch.setattr(warming, "EVERY", 0.0)

    class Held:
        pass

    left = Held()
    left.itself = left  # type: ignore[attr-defined]
    gone = weakref.ref(left)
    del left
    warming.seen()
    warming.collect()
    assert gone() is None and not warming._SEEN.is_set(), "the next time waits for another page"


def test_all_that_a_first_diagnosis_needs_is_loaded_and_never_collected() -> None:
    code = (
        "import gc, sys\nfrom advisor.views import warming\nwarming.load()\n"
        "before = set(sys.modules)\n"
        "from advisor.diagnosis import diagnose\n"
        "report = diagnose([('error.txt', sys.stdin.read())])\n"
        "late = sorted(m for m in set(sys.modules) - before if not m.startswith('advisor.rules.'))\n"
        "assert report.verdict == 'ooms' and not late, late\n"
        "assert gc.get_freeze_count() > 100_000 and 'torch' not in sys.modules\n"
    )
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.79 GiB. GPU 0 has a total capacity of 23.60 GiB of which 7.15 GiB is free."
    done = subprocess.run([sys.executable, "-c", code], input=error, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "No runtime found" not in done.stderr


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


def test_the_scores_of_the_other_process_are_those_of_this_one() -> None:
    from advisor import knowledge
    from advisor.accuracy import score

    here = score(sorted(knowledge.path("measurements").glob("*.yaml")))
    found = warming.scored()
    assert {name: found[name] for name in here} == warming.frozen(here)
    assert warming.scored() is found, "once for all sessions"


def test_the_shared_scores_cannot_be_changed_by_a_session() -> None:
    found = warming.frozen({"n": 1, "cases": [{"id": "a", "widths": [1.0, 2.0]}], "by": {"x": {"n": 2}}})
    assert found["cases"][0]["widths"] == (1.0, 2.0) and dict(found["by"]["x"]) == {"n": 2}
    for inner in (found, found["by"], found["cases"][0]):
        with pytest.raises(TypeError):
            inner["n"] = 3


def test_without_a_second_process_the_scores_are_made_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(-9, "advisor")

    monkeypatch.setattr(subprocess, "run", refused)
    monkeypatch.setattr("advisor.accuracy.score", lambda files: {"n": len(files), "cases": [{"id": "a"}]})
    found = warming._scored.__wrapped__()
    assert found["n"] > 0
    assert found["cases"] == ({"id": "a"},)
