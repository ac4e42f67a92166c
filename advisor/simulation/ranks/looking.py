"""Which rank of a pipeline is answered for: each stage that may need most is run, and the fullest is shown."""

from __future__ import annotations

from collections.abc import Callable

from advisor.run import Run
from advisor.simulation import timeline
from advisor.simulation.ranks import dividing, pipelining
from advisor.simulation.recorder import Recorder
from advisor.simulation.step import STEPS

Record = Callable[[int], Recorder]
Say = Callable[[str], None]


def fullest(run: Run, record: Record, say: Say) -> tuple[Recorder, str | None]:
    """The recording of the rank that is meant, and for a pipeline which stage that is, in words.

    ``record``: the steps as the given rank of the job's group sees them; the first rank of a stage stands for it, its shards being the largest.

    Raises:
        CannotProbe: a stage without layers.
    """
    stages = pipelining.degree(run.effective)
    if stages == 1:
        return record(0), None
    ranks = dividing.world_of(run) // stages
    looked = pipelining.looked_at(run)
    best: tuple[int, int, Recorder] | None = None
    for stage in looked:
        say(f"stage {stage + 1} of {stages}")
        found = record(stage * ranks)
        size = max(point.bytes for point in timeline.peaks(found.events, found.storages, found.moments, STEPS - 1).values())
        if best is None or size > best[0]:
            best = (size, stage, found)
    assert best is not None  # there is a first stage
    most = f", which needs most of stages {', '.join(str(stage + 1) for stage in looked)}" if len(looked) > 1 else ""
    return best[2], f"pipeline stage {best[1] + 1} of {stages}{most}"
