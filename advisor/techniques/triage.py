"""Actions outside the job: none of them changes what the job itself needs."""

from __future__ import annotations

from advisor.run import Run
from advisor.techniques.curing import cured
from advisor.techniques.technique import NotApplicable, technique


@technique("map-each-rank", tier="triage", estimated=False)
def map_each_rank(run: Run) -> Run | NotApplicable:
    """Give each rank a device of its own (local rank, visible devices)."""
    if run.world == 1 and (run.job.hardware.gpus_per_node or 1) == 1:
        return NotApplicable("the job has one rank, so ranks cannot share a device")
    return cured(run, "ranks-on-one-gpu") or run


@technique("free-other-process", tier="triage", estimated=False)
def free_other_process(run: Run) -> Run | NotApplicable:
    """End what else holds the card: another job, a notebook, workers that outlived a dead run."""
    freed = cured(run, "other-process", also=lambda d: d.kind == "foreign")
    if run.job.hardware.other_processes_gib:
        return (freed or run).but(hardware={"other_processes_gib": 0.0})
    return freed or run


@technique("reduce-host-memory", tier="triage", estimated=False)
def reduce_host_memory(run: Run) -> Run | NotApplicable:
    """Fewer loader workers, no pinned copies, load on one rank, more /dev/shm: the host's memory, not the card's."""
    return cured(run, "host-memory") or run


@technique("raise-memory-cap", tier="triage", estimated=False)
def raise_memory_cap(run: Run) -> Run | NotApplicable:
    """Lift the per-process fraction, or take a larger MIG slice or container limit."""
    freed = cured(run, "memory-cap")
    if run.job.hardware.memory_fraction is not None:
        return (freed or run).but(hardware={"memory_fraction": None})
    return freed or run


@technique("upgrade", tier="triage", estimated=False)
def upgrade(run: Run) -> Run | NotApplicable:
    """A later version of the library has the fault repaired."""
    return run


@technique("correct-launch", tier="triage", estimated=False)
def correct_launch(run: Run) -> Run | NotApplicable:
    """Launcher, environment and device visibility as the framework documents them."""
    return cured(run, "ranks-on-one-gpu", "sharding-inactive-at-load") or run
