"""Every example of the guides runs as it stands, on a CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch
from advisor import knowledge  # noqa: E402

EXAMPLES = knowledge.path("examples")
LISTED = knowledge.page("guides", "watch-a-run")[0]["examples"]


def ran(folder: Path, *command: str) -> str:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_guide_lists_every_example() -> None:
    assert sorted(LISTED) == sorted(p.name for p in EXAMPLES.iterdir())


def test_a_plain_loop(tmp_path: Path) -> None:
    assert re.search(r"^0 faults; largest live size by phase: {'forward': \d+", ran(tmp_path, str(EXAMPLES / "plain_loop.py")), re.MULTILINE)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "start" and kinds[-1] == "end"


def test_the_trainers_callback(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert "0 faults; largest live size" in ran(tmp_path, str(EXAMPLES / "trainer_callback.py"))
    assert (tmp_path / "events.jsonl").is_file()


def test_the_lightning_callback(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed", exc_type=ImportError)
    assert "0 faults; largest live size" in ran(tmp_path, "-W", "ignore", str(EXAMPLES / "lightning_callback.py"))
    assert (tmp_path / "events.jsonl").is_file()


# gloo's own threads now and then abort a process that is leaving ("terminate called without an active exception"); what is wrong is wrong each time
@pytest.mark.flaky(reruns=2)
def test_two_ranks_write_two_logs(tmp_path: Path) -> None:
    said = ran(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLES / "torchrun_loop.py"))
    assert said.count("rank 0: 0 faults") == said.count("rank 1: 0 faults") == 1  # two ranks may print into one line
    assert {p.name for p in tmp_path.glob("*.jsonl")} == {"events.rank0.jsonl", "events.rank1.jsonl"}


def test_the_notebook(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    (tmp_path / "cells.py").write_text("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    assert "retained-objects kept (list)" in ran(tmp_path, "cells.py")
