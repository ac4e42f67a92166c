"""Job: the whole file, and how a changed one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, Field, model_validator

from advisor.job.checking import JobError, validated
from advisor.job.division import Offload, Parallel
from advisor.job.lifecycle import Eval, Load, Resume, Rollout, Save
from advisor.job.place import Framework, Hardware
from advisor.job.section import NUMBER, Section
from advisor.job.training import Activations, Batch, Method, Model, Optimizer, Precision


class Job(Section):
    """One training job. Sections that are not optional are there even when nothing in them is written."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"load", "eval", "save", "resume", "rollout"})

    version: Annotated[Literal[1], NUMBER] = 1
    name: Annotated[str, Field(max_length=300)] | None = None
    model: Model = Model.model_construct()
    method: Method = Method.model_construct()
    objective: Literal["pretrain", "sft", "dpo", "kto", "orpo", "reward", "grpo", "ppo", "rloo"] | None = None
    precision: Precision = Precision.model_construct()
    optimizer: Optimizer = Optimizer.model_construct()
    batch: Batch = Batch.model_construct()
    activations: Activations = Activations.model_construct()
    parallel: Parallel = Parallel.model_construct()
    offload: Offload = Offload.model_construct()
    load: Load | None = None
    eval: Eval | None = None
    save: Save | None = None
    resume: Resume | None = None
    rollout: Rollout | None = None
    reference: Literal["none", "copy", "adapter-off", "precomputed", "offloaded", "separate"] | None = None
    reward: Literal["none", "copy", "separate"] | None = None
    critic: Literal["none", "copy", "separate"] | None = None
    hardware: Hardware = Hardware.model_construct()
    framework: Framework = Framework.model_construct()

    @model_validator(mode="after")
    def _pipeline_layout_matches(self) -> Self:
        layout, stages = self.parallel.pipeline_layout, self.parallel.pipeline
        if layout is not None and stages is not None and len(layout) % stages:
            raise ValueError(f"parallel.pipeline_layout lists {len(layout)} stages, which is no multiple of parallel.pipeline {stages}")
        return self

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
        return validated(Job, {**_shallow(self), **updates}, "")

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
        dumped = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in dumped.items() if value != {} or key in self.OPTIONAL}

    def to_yaml(self) -> str:
        """The job file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def _section_class(name: str) -> type[Section]:
    annotation = Job.model_fields[name].annotation
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    raise JobError(f"{name!r} is a single value, not a section")


def _merged(current: BaseModel | None, change: Mapping[str, Any]) -> dict[str, Any]:
    merged = _shallow(current) if current is not None else {}
    for name, value in change.items():
        outer, _, inner = name.partition(".")
        held = merged.get(outer)
        if inner:
            merged[outer] = _merged(held if isinstance(held, BaseModel) else None, {inner: value})
        elif isinstance(value, Mapping) and isinstance(held, BaseModel):
            merged[outer] = _merged(held, value)
        else:
            merged[outer] = value
    return merged


def _shallow(section: BaseModel) -> dict[str, Any]:
    return dict(section.__dict__)
