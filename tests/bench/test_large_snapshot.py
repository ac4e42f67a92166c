"""A snapshot as large as they come: half a gigabyte in a minute and six gigabytes. Eight megabytes here; ``ADVISOR_SNAPSHOT_MB=500`` for the whole."""

from __future__ import annotations

import os
import pickle
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from reading.snapshot.building import MIB, frame

from advisor.reading.snapshot.process import summary_of

MEGABYTES = int(os.environ.get("ADVISOR_SNAPSHOT_MB", "8"))
BYTES_EACH = 257  # an event with 40 frames, most of them references


def write(path: Path, megabytes: int) -> int:
    """A snapshot of about so many megabytes; returns its number of events."""
    dice = random.Random(1)
    frames = [frame(f"transformers/models/llama/part{i}.py", f"part{i}", i) for i in range(4000)]
    stacks = [dice.sample(frames, 40) for _ in range(2000)]
    events: list[dict[str, Any]] = []
    live: list[tuple[int, int]] = []
    while len(events) < megabytes * 1_000_000 // BYTES_EACH:
        made = (0x7F0000000000 + len(events) * 4 * MIB, dice.randrange(1, 4) * MIB)
        live.append(made)
        for action, (address, size) in (("alloc", made), *((a, live[0]) for a in ("free_requested", "free_completed") if len(live) > 3000)):
            stamp = 1_700_000_000_000_000 + len(events)
            events.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": stamp, "frames": list(dice.choice(stacks))})
        live = live[1:] if len(live) > 3000 else live
    with path.open("wb") as out:
        pickle.dump({"segments": [], "device_traces": [events], "allocator_settings": {}, "external_annotations": []}, out)
    return len(events)


@pytest.mark.timeout(600)
def test_in_a_minute_and_six_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.pickle"
    script = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[3:]; import bench.test_large_snapshot as b; b.write(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", script, str(path), str(MEGABYTES), *sys.path], check=True)
    started = time.monotonic()
    summary = summary_of(path)
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 6 * 1024**2  # KiB on Linux
    assert summary["devices"][0]["trace"]["events"] > MEGABYTES * 1_000_000 // BYTES_EACH - 3
