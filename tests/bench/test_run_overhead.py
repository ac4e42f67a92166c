"""What `advisor run` adds to a launch: less than 100 ms of CPU beyond the interpreter's own start, so that a busy machine does not count."""

import resource
import subprocess
import sys
from statistics import median


def seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_added_time() -> None:
    bare = median(seconds(sys.executable, "-c", "pass") for _ in range(9))
    wrapped = median(seconds(sys.executable, "-m", "advisor.cli", "run", "--", "true") for _ in range(9))
    print(f"interpreter {bare * 1e3:.0f} ms, with advisor run {wrapped * 1e3:.0f} ms: {(wrapped - bare) * 1e3:.0f} ms added")
    assert wrapped - bare < 0.1
