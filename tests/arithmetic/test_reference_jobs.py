"""Eight reference jobs: a floor that must be resident, and the ledger pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.arithmetic import estimate
from advisor.job import read_job
from advisor.units import GIB

FOLDER = Path(__file__).parents[1] / "jobs"
# GiB: what must be resident whatever the activations, weights, gradients and optimizer states at the step (exact), and the peak (pinned)
JOBS = {
    "j1": (59.8, {"weights": 14.958, "gradients": 14.958, "optimizer": 29.915}, 59.89),
    "j2": (5.1, {}, 7.1),
    "j3": (15.0, {"optimizer": 7.479}, 32.8),
    "j4": (14.8, {}, 82.4),
    "j5": (16.4, {"optimizer": 8.215}, 43.5),
    "j6": (43.5, {"optimizer": 21.747}, 49.2),
    "j7": (1.85, {"weights": 0.4636, "gradients": 0.4636, "optimizer": 0.9271}, 14.1),
    "j8": (38.0, {"reference": 2.875, "rollout-weights": 2.875}, 39.3),  # 4 bytes a logit: TRL 0.15 takes bf16 logits a row at a time
}


@pytest.mark.parametrize("name", JOBS)
def test_reference_job(name: str) -> None:
    floor, parts, pinned = JOBS[name]
    ledger = estimate(read_job((FOLDER / f"{name}.yaml").read_bytes()))
    assert ledger.peak().bytes >= floor * GIB
    at_step = ledger.by_part("step.update")
    for part, size in parts.items():
        assert at_step[part] / GIB == pytest.approx(size, rel=0.002)
    assert ledger.peak().bytes / GIB == pytest.approx(pinned, rel=0.06)
