"""Job: the whole file, and how a changed one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import yaml
from msgspec import Meta
from msgspec.structs import asdict

from advisor.job.checking import JobError, validated
from advisor.job.division import Offload, Parallel
from advisor.job.known import section_of, types_of
from advisor.job.lifecycle import Eval, Load, Resume, Rollout, Save
from advisor.job.place import Framework, Hardware
from advisor.job.section import Section
from advisor.job.training import Activations, Batch, Method, Model, Optimizer, Precision


class Job(Section, frozen=True, kw_only=True):
    """One training job. Sections that are not optional are there even when nothing in them is written."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"load", "eval", "save", "resume", "rollout"})

    version: Literal[1] = 1
    name: Annotated[str, Meta(max_length=300)] | None = None
    model: Model = Model()
    method: Method = Method()
    objective: Literal["pretrain", "sft", "dpo", "kto", "orpo", "reward", "grpo", "ppo", "rloo"] | None = None
    precision: Precision = Precision()
    optimizer: Optimizer = Optimizer()
    batch: Batch = Batch()
    activations: Activations = Activations()
    parallel: Parallel = Parallel()
    offload: Offload = Offload()
    load: Load | None = None
    eval: Eval | None = None
    save: Save | None = None
    resume: Resume | None = None
    rollout: Rollout | None = None
    reference: Literal["none", "copy", "adapter-off", "precomputed", "offloaded", "separate"] | None = None
    reward: Literal["none", "copy", "separate"] | None = None
    critic: Literal["none", "copy", "separate"] | None = None
    hardware: Hardware = Hardware()
    framework: Framework = Framework()

    def __post_init__(self) -> None:
        layout, stages = self.parallel.pipeline_layout, self.parallel.pipeline
        if layout is not None and stages is not None and len(layout) % stages:
            raise ValueError(f"parallel.pipeline_layout lists {len(layout)} stages, which is no multiple of parallel.pipeline {stages}")

    def but(self, **changes: Any) -> Job:
        """The changed job, validated: ``job.but(batch={"micro_batch": 1}, objective="sft")``.

        A mapping changes the named fields of a section and leaves the others, in a section within it too (also written
        ``{"trainer_offloaded.parameters": True}``); ``None`` takes an optional section away.
        """
        updates: dict[str, Any] = {}
        for section, change in changes.items():
            current = getattr(self, section)
            if isinstance(change, Mapping):
                kind = _section_class(section)
                merged = _merged(current, change)
                updates[section] = validated(kind, merged, section)
            else:
                updates[section] = change
        return validated(Job, {**asdict(self), **updates}, "")

    def get(self, path: str) -> Any:
        """The value at a dotted path; ``None`` where it or its section is not written."""
        value: Any = self
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
            if value is None:
                return None
        return value

    def to_dict(self) -> dict[str, Any]:
        """The contract's JSON: only what is written; empty sections left out."""
        dumped = {"version": self.version, **self.written()}
        return {key: value for key, value in dumped.items() if value != {} or key in self.OPTIONAL}

    def to_yaml(self) -> str:
        """The job file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def _section_class(name: str) -> type[Section]:
    found = section_of(types_of(Job)[name])
    if found is None:
        raise JobError(f"{name!r} is a single value, not a section")
    return found


def _merged(current: Section | None, change: Mapping[str, Any]) -> dict[str, Any]:
    merged = asdict(current) if current is not None else {}
    for name, value in change.items():
        outer, _, inner = name.partition(".")
        held = merged.get(outer)
        if inner:
            merged[outer] = _merged(held if isinstance(held, Section) else None, {inner: value})
        elif isinstance(value, Mapping) and isinstance(held, Section):
            merged[outer] = _merged(held, value)
        else:
            merged[outer] = value
    return merged
