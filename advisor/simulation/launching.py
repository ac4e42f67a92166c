"""How the probe's child process is started: our own module, in the folder of library versions that the run used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from advisor.run import Run
from advisor.simulation import versions


def command() -> list[str]:
    """The child's command line."""
    return [sys.executable, "-m", "advisor.simulation"]


def environment(overlay: Path | None) -> dict[str, str]:
    """The child's environment: one thread, no hub, the overlay before what is installed."""
    changed = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if overlay is not None:
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(overlay), os.environ.get("PYTHONPATH"))))
    return changed


def overlay_of(run: Run, say: Callable[[str], None], *, install: bool) -> tuple[Path | None, str | None]:
    """A folder with the run's own versions, or why there is none."""
    packages = versions.wanted(run.job.framework.versions)
    if not packages:
        return None, None
    if install:
        return versions.install(packages, say)
    found = versions.cached(packages)
    return found, None if found else "the run's own versions are not installed; --install-versions lets pip fetch them beside your environment"
