"""Sections that say where a job runs: cards and nodes, framework and versions."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from advisor.job.section import NUMBER, Fraction, Gib, Section


class OtherGpu(Section):
    """A card that the catalogue does not know."""

    name: Annotated[str, Field(max_length=200)]
    memory_gib: Annotated[float, Field(gt=0, le=100_000), NUMBER]


class Hardware(Section):
    """Cards, nodes, and what else is on them."""

    gpu: Annotated[str, Field(max_length=200)] | OtherGpu | None = None
    cards: tuple[Annotated[str, Field(max_length=200)], ...] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=4096), NUMBER] | None = None
    nodes: Annotated[int, Field(ge=1, le=100_000), NUMBER] | None = None
    host_memory_gib: Gib | None = None
    memory_fraction: Fraction | None = None
    other_processes_gib: Gib | None = None


class Framework(Section):
    """Whose training loop runs, in which versions."""

    name: (
        Literal[
            "hf-trainer", "trl", "axolotl", "llama-factory", "unsloth", "torchtune", "torchtitan", "deepspeed", "accelerate",
            "litgpt", "fsdp-qlora", "llm-foundry", "megatron-lm", "megatron-bridge", "nemo", "verl", "openrlhf", "ms-swift",
            "colossalchat", "arctic", "custom",
        ]
        | None
    ) = None  # fmt: skip
    versions: Mapping[str, Annotated[str, Field(max_length=100)]] | None = None
    allocator: Mapping[str, bool | int | float | str] | None = None
    use_cache: bool | None = None
    keeps_outputs: bool | None = None
    cuda_graphs: bool | None = None
