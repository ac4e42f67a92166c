"""What compares a card with the probe, where there is none: the jobs, the rule, the table, and that the tests are there and say why they skip."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import comparing, jobs

GIB = 1 << 30
PHASES = {"forward": 3 * GIB, "backward": 4 * GIB, "step": 2 * GIB}


def _row(**changes: Any) -> comparing.Row:
    measured = {"phases": PHASES, "totals": {"max_reserved": {"expected": 5 * GIB}}, **changes}
    probed = {"phases": {**PHASES, "forward": 2 * GIB, "loss": 3 * GIB}, "probe": {"max_reserved_by_mode": {"default": 5 * GIB, "expandable": 9 * GIB // 2}}}
    return comparing.row("one", probed, measured)


def test_a_dozen_jobs_are_whole_and_small() -> None:
    from advisor.arithmetic import estimate

    assert len(jobs.JOBS) >= 12
    for name in jobs.JOBS:
        run = jobs.run_of(name)
        assert not run.missing
        assert GIB / 4 < estimate(run).peak().bytes < 12 * GIB, name


def test_what_agrees_has_no_fault() -> None:
    assert _row().faults() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phases": {**PHASES, "backward": round(4.1 * GIB)}}, "the allocated peak"),
        ({"phases": {**PHASES, "step": round(2.2 * GIB)}}, "the peak of step"),
        ({"totals": {"max_reserved": {"expected": 6 * GIB}}}, "reserved on the card"),
    ],
    ids=["peak", "phase", "reserved"],
)
def test_what_differs_is_said_with_both_numbers(changes: dict[str, Any], said: str) -> None:
    faults = _row(**changes).faults()
    assert any(said in fault for fault in faults)
    assert all(sum(part.replace(",", "").isdigit() for part in fault.split()) >= 1 for fault in faults)


def test_the_table_is_one_of_measurements(tmp_path: Path) -> None:
    from advisor.accuracy import measured

    machine = {"device": "NVIDIA T4", "card": "t4-16gb", "driver": "550.54", "cuda": "12.8"}
    comparing.write(tmp_path / "card.yaml", comparing.measurements(_row(), jobs.written("llama", "t4-16gb"), machine))
    found = list(measured.load([tmp_path / "card.yaml"]))
    assert [(m.id, m.metric, m.gib, m.problem) for m in found] == [
        ("card-llama-allocated", "max_allocated", 4.0, None), ("card-llama-reserved", "max_reserved", 5.0, None),
    ]  # fmt: skip
    assert "driver 550.54" in (found[0].notes or "")
    assert f"forward {3 * GIB:,} B, probed {3 * GIB:,} B" in (found[0].notes or "")


@pytest.mark.torch
def test_without_a_card_every_job_is_skipped_with_how_to_run_it() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card here: the tests themselves run")
    path = Path(__file__).with_name("test_on_a_card.py")
    command = [sys.executable, "-m", "pytest", str(path), "-o", "addopts=", "-p", "no:cacheprovider", "-rs", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parents[2], timeout=120)
    assert f"{len(jobs.JOBS)} skipped" in done.stdout, done.stdout + done.stderr
    assert "run `pytest tests/gpu -n 0` on a machine with a GPU" in done.stdout
