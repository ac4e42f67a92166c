"""Job: what the user wrote, in the job file's form (version 1), frozen and validated.

A field that is not written is ``None``: unknown, never zero. A section marked optional that is absent is not used.
:func:`advisor.run.resolve` fills what is unknown and says from where. Bounds stop ``layers: 10**12`` before any arithmetic.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_JOB_BYTES = 1_000_000  # a job file is some kilobytes; this is far above any real one
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_T = TypeVar("_T", bound=BaseModel)

Layout = Literal["none", "nf4", "fp4", "int8", "gptq-int4", "awq-int4", "fp8", "mxfp4"]
Wide = Literal["fp32", "bf16", "fp16"]
Count = Annotated[int, Field(ge=1, le=1_048_576)]
Tokens = Annotated[int, Field(ge=1, le=1 << 30)]
Elements = Annotated[int, Field(ge=0, le=1 << 44)]
Gib = Annotated[float, Field(ge=0, le=1_000_000)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class JobError(ValueError):
    """A job that cannot be read; the message says which key or value, and what would be right."""


class Section(BaseModel):
    """Base of every part of a job: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, defer_build=True)


class Vision(Section):
    """Images or video beside the text."""

    tokens: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    images: Annotated[int, Field(ge=0, le=100_000)] | None = None
    max_pixels: Annotated[int, Field(ge=1, le=1 << 36)] | None = None
    frames: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    tower: Literal["frozen", "trained", "skipped"] | None = None
    tower_checkpointing: Literal["none", "full"] | None = None


class Model(Section):
    """Which model, and whose modelling code runs it."""

    name: Annotated[str, Field(max_length=300)] | None = None
    config: Mapping[str, Any] | None = None
    source: Literal["huggingface", "megatron", "torchtune", "torchtitan", "litgpt", "remote-code"] | None = None
    mlp: Literal["gated", "plain"] | None = None
    vision: Vision | None = None


class Method(Section):
    """What is trained, and in which layout the frozen base is held."""

    kind: Literal["full", "lora", "dora", "freeze", "galore", "lisa", "badam", "lomo"] | None = None
    rank: Annotated[int, Field(ge=1, le=65_536)] | None = None
    targets: Literal["all-linear", "attention", "qv"] | tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] | None = None
    adapter_dtype: Wide | None = None
    dropout: Annotated[float, Field(ge=0, le=1)] | None = None
    adapters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    base: Layout | None = None
    double_quant: bool | None = None
    group_size: Annotated[int, Field(ge=1, le=65_536)] | None = None
    kbit_preparation: bool | None = None


class Precision(Section):
    """Dtypes of weights, compute, masters, gradients and their reduction."""

    weights: Wide | None = None
    compute: Literal["fp32", "bf16", "fp16", "fp8", "nvfp4", "mxfp8"] | None = None
    mixed: Literal["none", "autocast", "fsdp", "deepspeed", "megatron"] | None = None
    master: Literal["none", "fp32"] | None = None
    gradients: Wide | None = None
    reduce: Wide | None = None
    fp8_recipe: Literal["tensorwise", "rowwise", "blockwise", "delayed", "mxfp8"] | None = None


class Optimizer(Section):
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


class Lengths(Section):
    """The samples' lengths in tokens."""

    p50: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    max: Tokens | None = None
    histogram: tuple[tuple[Tokens, Annotated[int, Field(ge=0, le=1 << 40)]], ...] | None = None


class Batch(Section):
    """How many tokens a forward pass sees."""

    micro_batch: Count | None = None
    seq_len: Tokens | None = None
    gradient_accumulation: Count | None = None
    packed: bool | None = None
    lengths: Lengths | None = None
    token_budget: Tokens | None = None
    generations: Count | None = None
    total_tokens: Annotated[int, Field(ge=1, le=10**17)] | None = None


class Selective(Section):
    """What selective checkpointing recomputes."""

    every_nth_layer: Annotated[int, Field(ge=1, le=100_000)] | None = None
    ops: tuple[str, ...] | None = None
    policy: Literal["op"] | None = None


class Activations(Section):
    """What is kept for the backward pass, and which kernels decide it."""

    checkpointing: Literal["none", "full", "selective"] | None = None
    selective: Selective | None = None
    reentrant: bool | None = None
    attention: Literal["eager", "sdpa", "flash-2", "flash-3", "flex", "xformers", "te-fused", "te-unfused"] | None = None
    loss: Literal["full-fp32", "full", "fused", "vocab-parallel", "chunked", "fused-linear"] | None = None
    kernels: tuple[Literal["rmsnorm", "swiglu", "rope", "layernorm", "lora"], ...] | None = None
    compile: bool | None = None
    sequence_packing: Literal["padded", "padding-free"] | None = None


class Wrap(Section):
    """Which modules are sharding units of their own."""

    adapters: Literal["together", "apart"] | None = None
    embeddings: Literal["root", "own unit"] | None = None


class Parallel(Section):
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
    pipeline_rank: Literal["first", "last", "max"] | Annotated[int, Field(ge=0, le=65_536)] | None = None
    virtual_stages: Count | None = None
    microbatches: Count | None = None
    expert: Count | None = None
    expert_tensor: Count | None = None
    async_tensor: bool | None = None
    pipeline_layout: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] | None = None
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
    device_map: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None


class Offload(Section):
    """What is held off the card."""

    parameters: Literal["none", "cpu", "nvme"] | None = None
    optimizer: Literal["none", "cpu", "nvme"] | None = None
    gradients: Literal["none", "cpu", "nvme"] | None = None
    activations: Literal["none", "cpu"] | None = None
    activation_modules: tuple[str, ...] | None = None
    tiled_mlp: bool | None = None


class Load(Section):
    """How the weights come in."""

    materialise: Literal["every-rank", "rank-0", "meta"] | None = None
    dtype: Wide | None = None
    move_before_sharding: bool | None = None
    quantize_on: Literal["device", "host", "none"] | None = None


class Eval(Section):
    """The evaluation loop."""

    micro_batch: Count | None = None
    accumulate: Literal["device", "host", "nothing"] | None = None
    keeps: Literal["logits", "argmax", "loss"] | None = None
    loss: Literal["full-fp32", "full", "fused", "vocab-parallel", "chunked", "fused-linear"] | None = None


class Save(Section):
    """How a checkpoint is written."""

    format: Literal["full", "sharded", "adapters"] | None = None
    gather: Literal["rank-0", "every-rank", "none"] | None = None
    to_host: bool | None = None
    merge: Literal["none", "device", "host"] | None = None


class Resume(Section):
    """Where a checkpoint is read to."""

    map: Literal["host", "device"] | None = None


class TrainerOffloaded(Section):
    """What the trainer has moved to the host while the engine runs."""

    parameters: bool | None = None
    optimizer: bool | None = None
    gradients: bool | None = None


class Rollout(Section):
    """The engine that generates text while the job trains."""

    engine: Literal["vllm", "sglang", "hf"] | None = None
    placement: Literal["colocated", "separate"] | None = None
    memory_fraction: Fraction | None = None
    sleep: Literal["none", "level-1", "level-2"] | None = None
    weights: Literal["fp32", "bf16", "fp16", "fp8", "awq-int4", "gptq-int4", "nf4"] | None = None
    tensor: Count | None = None
    max_sequences: Count | None = None
    max_length: Tokens | None = None
    shares_weights: bool | None = None
    fraction_of: Literal["total", "free"] | None = None
    wake: Literal["staged", "at-once"] | None = None
    sync: Literal["tensor", "layer", "bucket", "everything"] | None = None
    trainer_offloaded: TrainerOffloaded | None = None
    logprob_micro_batch: Count | None = None


class OtherGpu(Section):
    """A card that the catalogue does not know."""

    name: Annotated[str, Field(max_length=200)]
    memory_gib: Annotated[float, Field(gt=0, le=100_000)]


class Hardware(Section):
    """Cards, nodes, and what else is on them."""

    gpu: Annotated[str, Field(max_length=200)] | OtherGpu | None = None
    cards: tuple[Annotated[str, Field(max_length=200)], ...] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = None
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


class Job(Section):
    """One training job. Sections that are not optional are there even when nothing in them is written."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"load", "eval", "save", "resume", "rollout"})

    version: Literal[1] = 1
    name: Annotated[str, Field(max_length=300)] | None = None
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
                updates[section] = _validated(kind, merged, section)
            else:
                updates[section] = change
        return _validated(Job, {**_shallow(self), **updates}, "")

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


def read_job(source: str | bytes | Mapping[str, Any], *, where: str = "job") -> Job:
    """A job from YAML or JSON text or from a mapping.

    Raises:
        JobError: with the key or value that was wrong and the nearest key that is known.
    """
    if isinstance(source, Mapping):
        return _validated(Job, dict(source), "")
    if len(source) > MAX_JOB_BYTES:
        raise JobError(f"{where} is {len(source):,} bytes; a job file has at most {MAX_JOB_BYTES:,}")
    text = source.decode("utf-8", errors="replace") if isinstance(source, bytes) else source
    try:
        data = json.loads(text) if text.lstrip().startswith("{") else _load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise JobError(f"{where} is neither YAML nor JSON: {first}") from None
    if not isinstance(data, Mapping):
        raise JobError(f"{where} holds {_kind_in_words(data)}; a job file is a mapping that starts with 'version: 1'")
    return _validated(Job, dict(data), "")


@cache
def fields() -> tuple[str, ...]:
    """Every dotted path of the job file, sections left out."""
    return tuple(_paths(Job, ""))


def _load_yaml(text: str) -> Any:
    """YAML without aliases: a few of them can stand for gigabytes. Depth is bounded by the parser's own recursion limit."""
    if any(isinstance(event, yaml.events.AliasEvent) for event in yaml.parse(text, Loader=_LOADER)):
        raise ValueError("YAML aliases (*name) are not read: they can expand without bound")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506  a SafeLoader


def _kind_in_words(value: Any) -> str:
    names = {list: "a list", str: "a sentence", int: "a number", float: "a number", bool: "a truth value", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


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


def _paths(kind: type[BaseModel], prefix: str) -> list[str]:
    out: list[str] = []
    for name, info in kind.model_fields.items():
        path = f"{prefix}{name}"
        inner = [c for c in (info.annotation, *getattr(info.annotation, "__args__", ())) if isinstance(c, type) and issubclass(c, BaseModel)]
        if inner and inner[0] is not OtherGpu:
            out.extend(_paths(inner[0], f"{path}."))
        else:
            out.append(path)
    return out


def _validated(kind: type[_T], data: dict[str, Any], prefix: str) -> _T:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise JobError("; ".join(_in_words(item, prefix) for item in error.errors(include_url=False)[:4])) from None


def _in_words(item: Any, prefix: str) -> str:
    location = ".".join(str(part) for part in (*([prefix] if prefix else []), *item["loc"]))
    shown = repr(item.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if item["type"] == "extra_forbidden":
        near = nearest_field(location)
        return f"unknown key {location!r}" + (f"; did you mean {near!r}?" if near else "")
    return f"{location}: {item['msg'][0].lower()}{item['msg'][1:]} (read {shown})"


def nearest_field(path: str) -> str | None:
    """The known job field nearest to a mistyped one."""
    known = list(fields()) + sorted({p.split(".")[0] for p in fields()})
    found = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if found:
        return found[0]
    leaf = path.rpartition(".")[2]
    by_leaf = {p.rpartition(".")[2]: p for p in reversed(known)}
    close = difflib.get_close_matches(leaf, list(by_leaf), n=1, cutoff=0.75)
    return by_leaf[close[0]] if close else None
