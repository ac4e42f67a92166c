"""Sections that say where a job runs: cards and nodes, framework and versions."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal

from msgspec import Meta

from advisor.job.section import Fraction, Gib, Section


class OtherGpu(Section, frozen=True, kw_only=True):
    """A card that the catalogue does not know."""

    name: Annotated[str, Meta(max_length=200)]
    memory_gib: Annotated[float, Meta(gt=0, le=100_000)]


class Hardware(Section, frozen=True, kw_only=True):
    """Cards, nodes, and what else is on them."""

    gpu: Annotated[str, Meta(max_length=200)] | OtherGpu | None = None
    cards: tuple[Annotated[str, Meta(max_length=200)], ...] | None = None
    gpus_per_node: Annotated[int, Meta(ge=1, le=4096)] | None = None
    nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    host_memory_gib: Gib | None = None
    memory_fraction: Fraction | None = None
    other_processes_gib: Gib | None = None


class Framework(Section, frozen=True, kw_only=True):
    """Whose training loop runs, in which versions."""

    name: (
        Literal[
            "hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "torchtune", "torchtitan", "deepspeed", "accelerate",
            "litgpt", "fsdp-qlora", "llm-foundry", "megatron-lm", "megatron-bridge", "nemo", "verl", "openrlhf", "ms-swift",
            "colossalchat", "arctic", "custom",
        ]
        | None
    ) = None  # fmt: skip
    versions: Mapping[str, Annotated[str, Meta(max_length=100)]] | None = None
    allocator: Mapping[str, bool | int | float | str] | None = None
    use_cache: bool | None = None
    keeps_outputs: bool | None = None
    cuda_graphs: bool | None = None

    def __post_init__(self) -> None:
        if endless := [key for key, value in (self.allocator or {}).items() if isinstance(value, float) and not isfinite(value)]:
            raise ValueError(f"framework.allocator.{endless[0]} is no finite number")
