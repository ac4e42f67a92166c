"""One rank of a group that really runs on the CPU over gloo: records jobs and writes what it saw. Started by ``test_against_ranks``."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def rows(recorder: Any) -> list[list[Any]]:
    """Births and deaths as plain data."""
    found = []
    for event in recorder.events:
        s = recorder.storages[event.id]
        found.append(["death" if event.free else "birth", s.requested, s.operator, list(s.shape), s.dtype, s.phase, s.step, s.module, s.site])
    return found


def main(jobs: Path, out: Path) -> None:
    """Record each job as the rank that the environment says."""
    import torch
    import torch.distributed as dist

    from advisor.job import read_job
    from advisor.run import resolve
    from advisor.simulation.step import record

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    answers = {}
    for name, job in json.loads(jobs.read_text()).items():
        answers[name] = rows(record(resolve(read_job(job)), device="cpu", attention="math", autocast=None))
        dist.barrier()
    if rank == 0:
        out.write_text(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
