"""Sections that say how a job is divided over ranks and what is held off the card."""

from typing import Annotated, Literal

from msgspec import Meta

from advisor.job.section import Count, Elements, Section


class Wrap(Section, frozen=True, kw_only=True):
    """Which modules are sharding units of their own. ``blocks: root``: no wrapping policy, the whole model is one unit."""

    adapters: Literal["together", "apart"] | None = None
    embeddings: Literal["root", "own unit"] | None = None
    blocks: Literal["root", "own unit"] | None = None


class Parallel(Section, frozen=True, kw_only=True):
    """How the job is divided over ranks. GPUs = shard x replicate x tensor x pipeline."""

    strategy: Literal["none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "megatron", "megatron-distributed", "megatron-fsdp"] | None = None
    shard: Count | None = None
    replicate: Count | None = None
    reshard_after_forward: bool | None = None
    tensor: Count | None = None
    sequence: bool | None = None
    context: Count | None = None
    context_kind: Literal["ring", "ulysses"] | None = None
    pipeline: Count | None = None
    pipeline_rank: Literal["first", "last", "max"] | Annotated[int, Meta(ge=0, le=65_536)] | None = None
    virtual_stages: Count | None = None
    microbatches: Count | None = None
    expert: Count | None = None
    expert_tensor: Count | None = None
    async_tensor: bool | None = None
    pipeline_layout: tuple[Annotated[int, Meta(ge=0, le=100_000)], ...] | None = None
    limit_all_gathers: bool | None = None
    prefetch: Literal["none", "backward-pre", "backward-post"] | None = None
    bucket_elements: Elements | None = None
    allgather_bucket_elements: Elements | None = None
    prefetch_elements: Elements | None = None
    max_live_elements: Elements | None = None
    persistence_elements: Elements | None = None
    gradient_as_bucket_view: bool | None = None
    sync_each_microbatch: bool | None = None
    wrap: Wrap | None = None
    device_map: tuple[Annotated[float, Meta(ge=0, le=1)], ...] | None = None


class Offload(Section, frozen=True, kw_only=True):
    """What is held off the card."""

    parameters: Literal["none", "cpu", "nvme"] | None = None
    optimizer: Literal["none", "cpu", "nvme"] | None = None
    gradients: Literal["none", "cpu", "nvme"] | None = None
    activations: Literal["none", "cpu"] | None = None
    activation_modules: tuple[str, ...] | None = None
    tiled_mlp: bool | None = None
