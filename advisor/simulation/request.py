"""What the probe's child process is asked to do, and the errors it answers with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.run import Run
from advisor.simulation import zero_scope

SAID = ("stated", "read")


class CannotProbe(ValueError):  # noqa: N818  the name is part of the public interface
    """A job that the probe can not run; the message says what can not be run and what stands in for it."""


def request(run: Run, *, timeline: Path | None = None, snapshot: Path | None = None, extrapolate: bool = False) -> dict[str, Any]:
    """The run as the child reads it: every value settled, but for those where a default of the advisor would hide the library's own."""
    job = run.effective.to_dict()
    said = run.facts.get("framework.use_cache")
    if said is not None and said.kind not in SAID:
        job.get("framework", {}).pop("use_cache", None)
    if zero_scope.wanted(run.effective):
        job.setdefault("parallel", {}).update(zero_scope.sizes(run))
    files = {name: str(path.resolve()) for name, path in (("timeline", timeline), ("snapshot", snapshot)) if path}
    return {"job": job, **files, **({"extrapolate": True} if extrapolate else {})}
