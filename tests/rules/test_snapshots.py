"""What a memory snapshot shows moves the causes: parts of the peak, growth by place, blocks that are there twice, pools, holes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from reading.snapshot.building import LLAMA, LOSS, MIB, Recorded, dumped, snapshot

from advisor.diagnosis import diagnose, diagnose_reading
from advisor.evidence import Evidence, Line
from advisor.job import Job
from advisor.reading import Reading, read
from advisor.report import Report
from advisor.rules.samples import oom

PEAK = "snapshot peak: 70.0 GiB in all, at event 4 of 9"


def _report(*lines: str, text: str = "") -> Report:
    reading = read([("error.txt", text)]) if text else Reading(Job(), Evidence())
    told = tuple(Line("s.pickle", line) for line in lines)
    return diagnose_reading(replace(reading, evidence=replace(reading.evidence, lines=reading.evidence.lines + told)))


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("activations", "checkpointing-off"),
        ("logits", "logits"),
        ("attention", "attention-fallback"),
        ("optimizer", "optimizer-state"),
        ("rollout-cache", "rollout-resident"),
    ],
)
def test_the_part_that_fills_the_peak(part: str, cause: str) -> None:
    text = oom("512.00 MiB", allocated=70.0, unallocated=1.0, free=0.1, capacity=72.0)
    with_it = _report(PEAK, f"snapshot peak: 50.0 GiB from a/b.py:f ({part}, 90 blocks)", text=text)
    without = _report(PEAK, f"snapshot peak: 5.0 GiB from a/b.py:f ({part}, 9 blocks)", text=text)
    share = [{f.cause: f.confidence for f in r.findings}.get(cause, 0.0) for r in (with_it, without)]
    assert with_it.findings[0].cause == cause and share[0] > share[1] + 0.1


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("snapshot duplicates: the parameters are held at 2 bytes and at 4 bytes an element at once, outside the optimizer", "duplicate-layout"),
        ("snapshot growth: +3.2 GiB from a/b.py:forward (activations), one.pickle to two.pickle", "retained-graph"),
        ("snapshot growth: +3.2 GiB from callbacks.py:on_step_end (unattributed), one.pickle to two.pickle", "retained-objects"),
        ("snapshot private pools: 6.0 GiB in 3 private pools, 4000000 bytes of it free", "graph-pools"),
    ],
)
def test_what_a_line_of_a_snapshot_says(line: str, cause: str) -> None:
    report = _report("snapshot holds: 20.0 GiB at the end, in 9 blocks of 3 segments", line)
    assert report.findings[0].cause == cause and report.findings[0].confidence > 0.5


def test_small_growth_and_small_pools_say_nothing() -> None:
    report = _report(
        "snapshot holds: 20.0 GiB at the end, in 9 blocks of 3 segments",
        "snapshot growth: +20.0 MiB from a/b.py:forward (activations), one.pickle to two.pickle",
        "snapshot private pools: 100.0 MiB in 1 private pools, 0 bytes of it free",
    )
    assert not report.findings


def test_two_snapshots_of_a_run_that_keeps_its_graphs() -> None:
    first, second = Recorded(), Recorded()
    first.alloc(first.segment(512 * MIB), 200 * MIB, LLAMA)
    kept = second.segment(2048 * MIB)
    for _ in range(5):
        second.alloc(kept, 200 * MIB, LLAMA)
    second.alloc(kept, 2 * MIB, LOSS)
    report = diagnose([("step1.pickle", dumped(snapshot(first))), ("step9.pickle", dumped(snapshot(second)))])
    assert report.findings[0].cause == "retained-graph"
