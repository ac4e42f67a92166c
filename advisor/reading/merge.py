"""Many facts into one job: which one wins where they differ, and why; what is invalid becomes a sentence, never an exception.

What a log prints of the run itself wins over what was written for it; a command line over a script, a script or framework config over the
configs that it names; within the same kind the later text. Prose ("8 x A100") only fills what nothing else says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from advisor.architecture import presets
from advisor.evidence import Conflict, Fact, NotUnderstood
from advisor.job import Job, JobError, Section

PRINTED, COMMAND, SCRIPT, CONFIG, LAYER, PROSE, GUESS = 60, 50, 40, 40, 30, 10, 5
NAMED_FIRST = frozenset(("model.name", "hardware.gpu"))  # of remarks: people name what they train, and on what, before they compare it
REASONS: Mapping[int, str] = {
    PRINTED: "what the log prints of the run itself",
    COMMAND: "the command line overrides files",
    SCRIPT: "the later of two files",
    LAYER: "a config that another file names",
    PROSE: "a remark",
    GUESS: "an inference",
}


class Ranked(Struct, frozen=True):
    """A fact with the rank of its source."""

    fact: Fact
    rank: int


class Merged(Struct, frozen=True):
    """One job, the facts that made it, and what did not go in."""

    job: Job
    facts: tuple[Fact, ...]
    conflicts: tuple[Conflict, ...]
    not_understood: tuple[NotUnderstood, ...]


def rank_of(kind: str) -> int:
    """The rank of a config by its kind, as its reader names it."""
    lowered = kind.lower()
    if any(word in lowered for word in ("command", "shell", "override", "launch script")):
        return COMMAND
    if any(word in lowered for word in ("deepspeed", "accelerate", "fsdp", "config.json", "safetensors", "index")):
        return LAYER
    return SCRIPT


def merge(ranked: Sequence[Ranked]) -> Merged:
    """One fact a field: highest rank, then the later one."""
    chosen: dict[str, Ranked] = {}
    conflicts: list[Conflict] = []
    for item in ranked:
        field = item.fact.field
        earlier = chosen.get(field)
        if earlier is None:
            chosen[field] = item
            continue
        first = item.rank == PROSE and field in NAMED_FIRST
        winner, loser = (item, earlier) if item.rank > earlier.rank or (item.rank == earlier.rank and not first) else (earlier, item)
        chosen[field] = winner
        if winner.fact.value != loser.fact.value and loser.rank > GUESS and not _same_model(field, winner.fact.value, loser.fact.value):
            conflicts.append(Conflict(field, winner.fact, loser.fact))
    _drop_overruled_shard(chosen, ranked)
    kept = [chosen[field].fact for field in chosen]
    job, good, bad = build(kept)
    settled = {fact.field: fact for fact in good}
    shown = tuple(Conflict(c.field, settled[c.field], c.other) for c in conflicts if c.field in settled and settled[c.field].value != c.other.value)
    return Merged(job, tuple(good), _distinct(shown), tuple(bad))


def _same_model(field: str, one: Any, other: Any) -> bool:
    """Two spellings of one model: the hub's old name without its owner beside the one with it, a local path or a mirror of the same name, a variant."""
    if field != "model.name":
        return False
    return _tail(one) == _tail(other) or (
        (known := presets.find(str(one))) is not None and (also := presets.find(str(other))) is not None and known.hub_id == also.hub_id
    )


def _tail(name: Any) -> str:
    return str(name).replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _drop_overruled_shard(chosen: dict[str, Ranked], ranked: Sequence[Ranked]) -> None:
    """``num_processes`` of accelerate's file gives GPUs and shards at once; where a command line overrules the GPUs, the shards follow it."""
    shard, gpus = chosen.get("parallel.shard"), chosen.get("hardware.gpus_per_node")
    if shard is None or gpus is None or shard.fact.where is None or shard.fact.where == gpus.fact.where:
        return
    if any(i.fact.field == gpus.fact.field and i.fact.where == shard.fact.where and i.fact.value != gpus.fact.value for i in ranked):
        del chosen["parallel.shard"]


def _distinct(conflicts: Iterable[Conflict]) -> tuple[Conflict, ...]:
    out: dict[tuple[str, str], Conflict] = {}
    for conflict in conflicts:
        out.setdefault((conflict.field, repr(conflict.other.value)), conflict)
    return tuple(out.values())


def build(facts: Sequence[Fact]) -> tuple[Job, list[Fact], list[NotUnderstood]]:
    """The job of the facts. All at once where they are valid together; otherwise one by one, leaving out what is not."""
    try:
        return _put(Job(), facts), list(facts), []
    except (JobError, TypeError, ValueError):
        pass
    job, good, bad = Job(), [], []
    for fact in facts:
        try:
            job = _put(job, [fact])
        except (JobError, TypeError, ValueError) as error:
            bad.append(NotUnderstood(fact.where or "", fact.text or f"{fact.field} = {_shown(fact.value)}", f"{error}; it was left out"))
        else:
            good.append(fact)
    return job, good, bad


def _put(job: Job, facts: Sequence[Fact]) -> Job:
    changes: dict[str, Any] = {}
    for fact in facts:
        section, _, rest = fact.field.partition(".")
        if section not in Job.__struct_fields__:
            raise JobError(f"no field of a job is named {fact.field!r}")
        if not rest:
            changes[section] = fact.value
            continue
        inner = changes.setdefault(section, {})
        if not isinstance(inner, dict):
            raise JobError(f"{section!r} is a single value, not a section")
        parts = rest.split(".")
        for depth, part in enumerate(parts[:-1]):
            if part not in inner:
                present = job.get(".".join([section, *parts[: depth + 1]]))
                inner[part] = dict(present) if isinstance(present, Mapping) else present.written() if isinstance(present, Section) else {}
            inner = inner[part]
        inner[parts[-1]] = fact.value
    return job.but(**changes)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
