"""Which rank failed first, and what only followed: time-outs of peers, signals of launchers, failures after a peer's.

By time where every failure bears one, otherwise in the order of the texts and lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from advisor.evidence import Failure

_CAUSES = ("gpu-memory", "gpu-driver", "engine-start", "host-memory")


def ordered(failures: Sequence[Failure], stamps: Mapping[str, float]) -> tuple[Failure, ...]:
    """Causes before consequences, the first failure first. ``stamps``: time by ``where``."""
    causes = [f for f in failures if f.kind in _CAUSES]
    timed = bool(causes) and all(f.where in stamps for f in causes)
    memory = [f for f in failures if f.kind in _CAUSES and not f.consequence]
    collective = [f for f in failures if f.kind == "collective" and not f.consequence]
    out: list[Failure] = []
    for failure in failures:
        consequence = failure.consequence
        if failure.kind == "host-memory" and _exit_only(failure) and any(f.kind in ("gpu-memory", "gpu-driver") for f in memory):
            consequence = True  # a launcher that kills the other ranks once one has failed
        elif (failure.kind == "not-memory" and (memory or collective)) or (
            failure.kind == "collective" and any(f.kind in ("gpu-memory", "gpu-driver", "host-memory") for f in memory) and not _says_memory(failure)
        ):
            consequence = True
        out.append(failure if consequence == failure.consequence else replace(failure, consequence=consequence))

    def key(item: tuple[int, Failure]) -> tuple[bool, int, float, int]:
        index, failure = item
        return failure.consequence, _weight(failure), stamps.get(failure.where, 0.0) if timed else 0.0, index

    return tuple(failure for _, failure in sorted(enumerate(out), key=key))


def _weight(failure: Failure) -> int:
    """A text that prints counters says more than one that only names the failure."""
    return 0 if failure.kind != "not-memory" else 1


def _exit_only(failure: Failure) -> bool:
    return dict(failure.details).get("what") in ("torchrun", "exit code", "signal", "killed", "worker gone")


def _says_memory(failure: Failure) -> bool:
    return dict(failure.details).get("what") == "out of memory"
