"""Sections that say what is trained and how a step computes: model, method, precision, optimizer, batch, activations."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import Meta

from advisor.job.section import Count, Layout, Section, Tokens, Wide


class Vision(Section, frozen=True, kw_only=True):
    """Images or video beside the text."""

    tokens: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    images: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    max_pixels: Annotated[int, Meta(ge=1, le=1 << 36)] | None = None
    frames: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    tower: Literal["frozen", "trained", "skipped"] | None = None
    tower_checkpointing: Literal["none", "full"] | None = None


class Model(Section, frozen=True, kw_only=True):
    """Which model, and whose modelling code runs it."""

    name: Annotated[str, Meta(max_length=300)] | None = None
    config: Mapping[str, Any] | None = None
    source: Literal["huggingface", "megatron", "torchtune", "torchtitan", "litgpt", "remote-code"] | None = None
    mlp: Literal["gated", "plain"] | None = None
    classes: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None  # a classification or reward head of so many outputs in place of the language head
    vision: Vision | None = None


class Method(Section, frozen=True, kw_only=True):
    """What is trained, and in which layout the frozen base is held."""

    kind: Literal["full", "lora", "dora", "freeze", "galore", "lisa", "badam", "lomo"] | None = None
    rank: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    targets: Literal["all-linear", "attention", "qv"] | tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] | None = None
    adapter_dtype: Wide | None = None
    dropout: Annotated[float, Meta(ge=0, le=1)] | None = None
    adapters: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    base: Layout | None = None
    double_quant: bool | None = None
    group_size: Annotated[int, Meta(ge=-1, le=65_536)] | None = None  # -1: one group over all inputs of an output (GPTQ)
    kbit_preparation: bool | None = None

    def __post_init__(self) -> None:
        if self.group_size == 0:
            raise ValueError("method.group_size 0: give the number of inputs that share a scale, or -1 where all inputs of an output share one")


class Precision(Section, frozen=True, kw_only=True):
    """Dtypes of weights, compute, masters, gradients and their reduction."""

    weights: Wide | None = None
    compute: Literal["fp32", "bf16", "fp16", "fp8", "nvfp4", "mxfp8"] | None = None
    mixed: Literal["none", "autocast", "fsdp", "deepspeed", "megatron"] | None = None
    master: Literal["none", "fp32"] | None = None
    gradients: Wide | None = None
    reduce: Wide | None = None
    fp8_recipe: Literal["tensorwise", "rowwise", "blockwise", "delayed", "mxfp8"] | None = None


class Optimizer(Section, frozen=True, kw_only=True):
    """The optimizer and how its step is implemented."""

    name: (
        Literal[
            "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "adamw-4bit", "adafactor", "sgd", "sgd-momentum", "lion",
            "muon", "adam-mini", "galore-adamw", "apollo", "cpu-adam",
        ]
        | None
    ) = None  # fmt: skip
    states: Literal["fp32", "bf16", "fp16", "int8"] | None = None
    implementation: Literal["foreach", "fused", "for-loop", "multi-tensor"] | None = None
    in_backward: bool | None = None


class Lengths(Section, frozen=True, kw_only=True):
    """The samples' lengths in tokens."""

    p50: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    max: Tokens | None = None
    histogram: tuple[tuple[Tokens, Annotated[int, Meta(ge=0, le=1 << 40)]], ...] | None = None

    def __post_init__(self) -> None:
        given = [(name, value) for name in ("p50", "p95", "p99", "max") if (value := getattr(self, name)) is not None]
        for (lower, less), (upper, more) in pairwise(given):
            if less > more:
                raise ValueError(f"batch.lengths.{lower} {less} is above {upper} {more}: of the same samples {upper} is the longer; exchange or correct them")


class Batch(Section, frozen=True, kw_only=True):
    """How many tokens a forward pass sees."""

    micro_batch: Count | None = None
    seq_len: Tokens | None = None
    gradient_accumulation: Count | None = None
    global_batch: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None  # sequences of one optimizer step over all ranks
    packed: bool | None = None
    lengths: Lengths | None = None
    token_budget: Tokens | None = None
    generations: Count | None = None
    total_tokens: Annotated[int, Meta(ge=1, le=10**17)] | None = None


class Selective(Section, frozen=True, kw_only=True):
    """What selective checkpointing recomputes."""

    every_nth_layer: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    ops: tuple[str, ...] | None = None
    policy: Literal["op"] | None = None


class Activations(Section, frozen=True, kw_only=True):
    """What is kept for the backward pass, and which kernels decide it."""

    checkpointing: Literal["none", "full", "selective"] | None = None
    selective: Selective | None = None
    reentrant: bool | None = None
    attention: Literal["eager", "sdpa", "flash-2", "flash-3", "flex", "xformers", "te-fused", "te-unfused"] | None = None
    loss: Literal["full-fp32", "full", "fused", "vocab-parallel", "chunked", "fused-linear"] | None = None
    kernels: tuple[Literal["rmsnorm", "swiglu", "rope", "layernorm", "lora"], ...] | None = None
    compile: bool | None = None
    sequence_packing: Literal["padded", "padding-free"] | None = None
