"""The probe beside a real card, job by job: allocated and reserved peaks, and each phase.

Run it where there is a card: ``pip install -e '.[probe]'`` beside a CUDA (or ROCm) build of torch, then ``pytest tests/gpu -n 0``. With
``ADVISOR_GPU_TABLE=FILE`` the figures are written as measurements, to be kept in ``knowledge/measurements/``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import comparing, jobs

HOW = "no card that torch can use: run `pytest tests/gpu -n 0` on a machine with a GPU and a CUDA or ROCm build of torch"
pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    """Card, driver and versions; skips where there is none."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(HOW)
    from advisor.measurement.machine import described

    return described("cuda")


@pytest.fixture(scope="module")
def table() -> Iterator[list[dict[str, Any]]]:
    """Measurements of this session, written at its end where a file is named."""
    entries: list[dict[str, Any]] = []
    yield entries
    if entries and (where := os.environ.get("ADVISOR_GPU_TABLE")):
        comparing.write(Path(where), entries)


def _said(command: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "advisor.cli", *command, "--json"], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", jobs.JOBS)
def test_the_probe_saw_what_the_card_counts(name: str, machine: dict[str, Any], table: list[dict[str, Any]], tmp_path: Path) -> None:
    job = jobs.written(name, machine["card"])
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    seen = comparing.row(name, _said(["probe", str(path), "--whole", "--quiet"]), _said(["validate", str(path)]))
    table += comparing.measurements(seen, job, machine)
    assert not seen.faults()
