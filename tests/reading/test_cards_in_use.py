"""Cards that a table lists, against cards that the job uses."""

from __future__ import annotations

import pytest

from advisor.diagnosis import diagnose

CARD = (
    "|   {i}  NVIDIA GeForce RTX 4090        On  |   00000000:0{i}:00.0 Off |                  Off |\n"
    "| 30%   45C    P2             80W /  450W |  {used:>7}MiB /  24564MiB |      0%      Default |\n"
)
PROCESS = "|    {i}   N/A  N/A     1234{i}      C   python                                      20900MiB |\n"


@pytest.mark.parametrize(("used", "processes", "count"), [((21050, 12), (0,), 1), ((21050, 21050), (0, 1), 2), ((21050, 12), (), 2), ((21050, 9000), (0,), 2)])
def test_a_card_that_stays_idle_beside_the_only_process_is_not_the_jobs(used: tuple[int, ...], processes: tuple[int, ...], count: int) -> None:
    table = "".join(CARD.format(i=i, used=u) for i, u in enumerate(used)) + "".join(PROCESS.format(i=i) for i in processes)
    report = diagnose([("smi.txt", table)])
    assert report.run is not None and report.run.job.hardware.gpus_per_node == count
    assert count > 1 or "replicated-state" not in [f.cause for f in report.findings]
