"""Lines of an action put to the place where the job runs: the batch system or container that was seen, the processes that the text names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from advisor.evidence import Evidence
from advisor.reading.pattern import pattern
from advisor.units import GIB

MOST_PIDS = 8
BESIDE = 3 * GIB  # what a process may hold outside PyTorch's allocator: context, NCCL, libraries
_PID = pattern(r"\bPID\b")
_SMI = pattern(r"^nvidia-smi (?=--query)")
# Signs of a batch system or a container in logs, scripts and settings; the first that is there is where the limit stands.
_PLACES = (
    ("slurm", pattern(r"slurm|\bsrun\b|\bsbatch\b|StepId=", re.IGNORECASE)),
    ("kubernetes", pattern(r"\bOOMKilled\b|kubelet|kubectl|\bpods?[/ ]|k8s|cgroup.{0,40}kubepods", re.IGNORECASE)),
    ("docker compose", pattern(r"docker[- ]compose", re.IGNORECASE)),
    ("docker", pattern(r"\bdocker\b", re.IGNORECASE)),
)
LIMITED = frozenset(name for name, _ in _PLACES)


def fitted(lines: Mapping[str, tuple[str, ...]], evidence: Evidence | None) -> Mapping[str, tuple[str, ...]]:
    """The lines for the place that was seen, with the process ids that the error prints; all places where none was seen."""
    if evidence is None or not lines:
        return lines
    if len(lines.keys() & LIMITED) > 1 and (place := _place(evidence)) is not None and place in lines:
        lines = {name: text for name, text in lines.items() if name == place or name not in LIMITED}
    failure = evidence.failure
    others = _others(evidence)
    if not others or failure is None:
        return lines
    card = f"nvidia-smi --id={failure.gpu} " if failure.gpu is not None else "nvidia-smi "
    return {name: tuple(_SMI.sub(card, _PID.sub(" ".join(others), line)) for line in text) for name, text in lines.items()}


def _others(evidence: Evidence) -> list[str]:
    """Ids of processes that are not the failing one: those that its error names, or a table of nvidia-smi shows with more than it can hold itself."""
    failure = evidence.failure
    if failure is None:
        return []
    named = [p.pid for p in failure.processes if p.pid is not None and not p.own]
    if not named and (own := failure.reserved_bytes or failure.allocated_bytes) is not None:
        shown = [p for d in evidence.devices if failure.gpu is None or d.index in (None, failure.gpu) for p in d.processes]
        named = [p.pid for p in shown if p.pid is not None and not p.own and (p.used_bytes or 0) > own + BESIDE]
    return [str(pid) for pid in dict.fromkeys(named)][:MOST_PIDS]


def _place(evidence: Evidence) -> str | None:
    texts = [failure.text for failure in evidence.failures[:4]] + [line.text for line in evidence.lines[:400]]
    texts += [f"{key} {value}" for _, key, value in evidence.seen_keys[:400]]
    return next((name for name, sign in _PLACES if any(sign.search(text) for text in texts)), None)
