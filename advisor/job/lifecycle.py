"""Optional sections: what happens besides the training step (loading, evaluation, saving, resuming, rollout)."""

from typing import Literal

from advisor.job.section import Count, Fraction, Section, Tokens, Wide


class Load(Section, frozen=True, kw_only=True):
    """How the weights come in."""

    materialise: Literal["every-rank", "rank-0", "meta"] | None = None
    dtype: Wide | None = None
    move_before_sharding: bool | None = None
    quantize_on: Literal["device", "host", "none"] | None = None


class Eval(Section, frozen=True, kw_only=True):
    """The evaluation loop."""

    micro_batch: Count | None = None
    accumulate: Literal["device", "host", "nothing"] | None = None
    keeps: Literal["logits", "argmax", "loss"] | None = None
    loss: Literal["full-fp32", "full", "fused", "vocab-parallel", "chunked", "fused-linear"] | None = None


class Save(Section, frozen=True, kw_only=True):
    """How a checkpoint is written."""

    format: Literal["full", "sharded", "adapters"] | None = None
    gather: Literal["rank-0", "every-rank", "none"] | None = None
    to_host: bool | None = None
    merge: Literal["none", "device", "host"] | None = None


class Resume(Section, frozen=True, kw_only=True):
    """Where a checkpoint is read to."""

    map: Literal["host", "device"] | None = None


class TrainerOffloaded(Section, frozen=True, kw_only=True):
    """What the trainer has moved to the host while the engine runs."""

    parameters: bool | None = None
    optimizer: bool | None = None
    gradients: bool | None = None


class Rollout(Section, frozen=True, kw_only=True):
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
