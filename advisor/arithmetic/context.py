"""Context: the numbers that every part of the arithmetic reads, worked out once from a run."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from advisor.architecture import Architecture, Block
from advisor.architecture.presets import unknown
from advisor.arithmetic import moments as at
from advisor.arithmetic.dtypes import bytes_of
from advisor.arithmetic.parameters import Counts, count
from advisor.arithmetic.stages import Stage, on_card, on_stage, stages
from advisor.deviation import Deviation
from advisor.job import Job
from advisor.run import Run

PREFERENCE = frozenset({"dpo", "kto", "orpo", "reward"})
ROLLOUT_OBJECTIVES = frozenset({"grpo", "ppo", "rloo"})
FSDP = frozenset({"fsdp1", "fsdp2", "megatron-fsdp"})
PARKS = frozenset({"verl"})  # offload flags mean: off the card between phases (workers/fsdp_workers.py load_fsdp_model_to_gpu before each update)
PACKS_PAIRS = frozenset({"ms-swift"})  # packing of preference data: a pair's length is the sum of both (dataset/packing.py)
TORCH_PIPELINE = frozenset({None, "custom", "torchtitan"})
MEGATRON = frozenset({"megatron", "megatron-distributed", "megatron-fsdp"})


class CannotEstimate(ValueError):  # noqa: N818  the name is part of the public interface
    """A fact without which nothing can be counted; the message names the field and what to give. ``field`` is its dotted path."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Context(Struct, frozen=True):
    """One rank of a run in numbers. Sizes of dtypes in bytes, counts in elements, tokens as this rank's forward pass sees them."""

    run: Run
    job: Job  # run.effective
    arch: Architecture
    deviations: tuple[Deviation, ...]
    moments: frozenset[str]  # the moments this run has
    # dtypes (bytes); the names are in job.precision
    weight: int
    compute: int
    gradient: int
    state: int
    reduce: int
    adapter: int
    autocast: bool
    # tokens of one forward pass on one rank
    micro_batch: int  # sequences, doubled for pairs (DPO, ORPO, KTO, reward)
    seq_len: int  # tokens of a sequence on this rank (divided by context ranks)
    tokens: int
    accumulation: int
    # ranks
    shard: int
    replicate: int
    tensor: int
    context: int
    pipeline: int
    expert: int
    expert_tensor: int
    expert_shard: int  # ranks over which an expert's own state is divided
    sequence_parallel: bool
    strategy: str
    stage: Stage
    blocks: tuple[tuple[Block, int], ...]  # text blocks on this pipeline rank: (kind, how many)
    layers: int
    has_embedding: bool
    has_head: bool
    # how it runs
    checkpointing: Literal["none", "full", "selective"]
    reentrant: bool
    attention: str  # the kernel that is asked for; attention_scores decides what really runs
    kernels: frozenset[str]
    compiled: bool
    framework: str | None
    source: str  # whose modelling code
    method: str
    base: str  # layout of the frozen base
    optimizer: str
    parameters_away: bool  # at home on the host (or NVMe) while training
    gradients_away: bool
    optimizer_away: bool
    parked: frozenset[str]  # weights, gradients, optimizer: off the card while the rollout engine runs
    sm: int | None  # compute capability of the card: 80, 90, ...
    counts: Counts

    def version(self, package: str) -> tuple[int, ...] | None:
        """``(4, 48, 1)``; ``None`` where the version is not known."""
        text = (self.job.framework.versions or {}).get(package)
        return None if text is None else parse_version(text)

    def at_least(self, package: str, *wanted: int, unknown: bool = True) -> bool:
        """Whether a package is of the version or newer; ``unknown`` where its version is not known."""
        found = self.version(package)
        return unknown if found is None else found >= wanted

    @property
    def trains(self) -> frozenset[str]:
        """The moments of a training step."""
        return self.moments & at.TRAINING

    @property
    def is_megatron(self) -> bool:
        """Megatron's own training loop and buffers."""
        return self.strategy in MEGATRON

    @property
    def masters(self) -> bool:
        """An fp32 copy of what trains: as the job says; with DeepSpeed always (stage_1_and_2.py and stage3.py clone partitions as fp32)."""
        return self.job.precision.master == "fp32" or self.strategy.startswith("zero")

    @property
    def master(self) -> int:
        """Bytes of an element of the masters: DeepSpeed has 16-bit optimizer states only where its masters are 16-bit too.

        Source: deepspeed runtime/base_optimizer.py, bf16_optimizer_states asserts bf16_master_weights_and_grads (0.18.3).
        """
        narrow = self.strategy.startswith("zero") and self.job.precision.master == "none" and self.job.optimizer.states in ("bf16", "fp16")
        return 2 if narrow else 4

    @property
    def gradients_leave(self) -> bool:
        """Each gradient goes as soon as it exists: stepped in the backward pass, or copied to the host where one card (or a replica) trains.

        Source: torchao optim/cpu_offload.py CPUOffloadOptimizer(offload_gradients=True), a hook on each parameter's accumulated gradient.
        """
        return bool(self.job.optimizer.in_backward) or (self.gradients_away and self.strategy in ("none", "ddp"))

    @property
    def gradients_kept(self) -> bool:
        """Gradients of earlier micro batches are alive in a later forward pass; those of earlier steps too where zero_grad fills zeros (torch before 2.0)."""
        more = self.accumulation > 1 or (self.torch_pipeline and (self.job.parallel.microbatches or 1) > 1)
        return (more or not self.at_least("torch", 2)) and not self.gradients_leave

    @property
    def torch_pipeline(self) -> bool:
        """The stages run under torch's own schedules (torch.distributed.pipelining): torchtitan's, and what else is neither Megatron's nor DeepSpeed's."""
        own = self.framework in TORCH_PIPELINE and self.strategy in ("none", "ddp", "fsdp2") and self.source != "megatron"
        return own and self.pipeline > 1


def _reentrant(run: Run, job: Job) -> bool:
    """What is written, else the modelling code's default: transformers before version 5 checkpoints reentrantly."""
    fact = run.facts.get("activations.reentrant")
    if job.activations.reentrant is not None and (fact is None or fact.kind in ("stated", "read")):
        return job.activations.reentrant
    found = parse_version((job.framework.versions or {}).get("transformers", ""))
    return (job.model.source or "huggingface") == "huggingface" and found is not None and found < (5,)


def _optimizer(job: Job) -> str:
    """The optimizer that runs: GaLore projects AdamW's states, LOMO keeps none."""
    name, kind = job.optimizer.name or "adamw", job.method.kind
    if kind == "lomo":
        return "sgd"
    return "galore-adamw" if kind == "galore" and name == "adamw" else name


def _parked(job: Job) -> frozenset[str]:
    """What the trainer moves to the host while the engine runs, and back before it trains."""
    if job.rollout is None:
        return frozenset()
    moved = job.rollout.trainer_offloaded
    names = (("weights", "parameters"), ("optimizer", "optimizer"), ("gradients", "gradients"))
    out = {part for part, name in names if moved is not None and getattr(moved, name)}
    if job.framework.name in PARKS:
        out |= {part for part, name in names if getattr(job.offload, name) == "cpu"}
    return frozenset(out)


def _kbit_skipped(job: Job) -> bool:
    """TRL leaves the k-bit preparation out where a 4-bit model is still on the host or on meta, which is how a sharded load begins.

    DeepSpeed's engine makes 16 bits of every floating parameter, those that the preparation has widened too (runtime/engine.py
    ``_configure_distributed_model``: ``module.half()``, ``module.bfloat16()``; 0.12.6 to 0.19.8).
    """
    if job.precision.mixed == "deepspeed" and job.precision.compute in ("bf16", "fp16"):
        return True
    sharded = job.parallel.strategy in ("fsdp1", "fsdp2", "zero3")
    return sharded and job.method.base in ("nf4", "fp4") and job.framework.name in ("trl", "hf-trainer")


@lru_cache(maxsize=512)
def parse_version(text: str) -> tuple[int, ...] | None:
    """The leading numbers of a version: ``2.7.0a0+git`` is ``(2, 7, 0)``."""
    match = re.match(r"\D?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")[:4]) if match else None


def read(run: Run, stage: Stage | None = None) -> Context:
    """The context of a run, for one pipeline stage where it has several.

    Raises:
        CannotEstimate: architecture, micro batch or sequence length is not known.
    """
    job, arch = run.effective, run.architecture
    if arch is None:
        raise CannotEstimate("model", unknown(job.model.name))
    if job.method.kbit_preparation and _kbit_skipped(job):
        job = job.but(method={"kbit_preparation": False})
    batch, precision, parallel, method = job.batch, job.precision, job.parallel, job.method
    micro, seq = _tokens(job)
    strategy = parallel.strategy or "none"
    if strategy == "zero3" and job.model.source == "megatron":
        strategy = "megatron-fsdp"  # Megatron's own way of dividing parameters, in the words of those who write it as ZeRO-3
    pipeline, tensor, context = parallel.pipeline or 1, parallel.tensor or 1, parallel.context or 1
    shard, replicate, expert = parallel.shard or 1, parallel.replicate or 1, parallel.expert or 1
    expert_tensor = parallel.expert_tensor or (tensor if strategy in MEGATRON else 1)
    world = shard * replicate * tensor
    expert_shard = max(1, world // (expert * expert_tensor)) if strategy in MEGATRON else max(1, shard // expert)
    where = "only" if pipeline == 1 else stage or stages(job)[-1]
    blocks = on_stage(arch, job, where)
    if parallel.device_map and pipeline == 1:
        where, blocks = on_card(arch, parallel.device_map)
    has_embedding, has_head = where in ("only", "first"), where in ("only", "last")
    parks = job.framework.name in PARKS

    def away(part: str) -> bool:
        return getattr(job.offload, part) in ("cpu", "nvme") and not parks

    # a pair is two rows of a batch, each of the stated length, unless pairs are packed into rows of it
    shared = batch.packed and job.framework.name in PACKS_PAIRS
    pair = 2 if job.objective in PREFERENCE and job.objective != "kto" and not shared else 1
    weight = bytes_of(precision.weights)
    compute = bytes_of(precision.compute if precision.compute in ("fp32", "bf16", "fp16") else "bf16" if precision.compute else precision.weights)
    mixed = precision.mixed or "none"
    return Context(
        run=run, job=job, arch=arch, deviations=run.deviations, moments=_present(run, job),
        weight=weight, compute=compute,
        gradient=bytes_of(precision.gradients, weight), state=bytes_of(job.optimizer.states, bytes_of(precision.master, weight)),
        reduce=bytes_of(precision.reduce, compute), adapter=bytes_of(method.adapter_dtype, 4), autocast=mixed == "autocast",
        micro_batch=micro * pair, seq_len=max(1, seq // context), tokens=max(1, micro * pair * seq // context),
        accumulation=batch.gradient_accumulation or 1,
        shard=shard, replicate=replicate, tensor=tensor, context=context, pipeline=pipeline, expert=expert, expert_tensor=expert_tensor,
        expert_shard=expert_shard, sequence_parallel=bool(parallel.sequence) and tensor > 1, strategy=strategy, stage=where, blocks=blocks,
        layers=sum(n for _, n in blocks), has_embedding=has_embedding, has_head=has_head,
        checkpointing=job.activations.checkpointing or "none", reentrant=_reentrant(run, job),
        attention=job.activations.attention or "sdpa", kernels=frozenset(job.activations.kernels or ()), compiled=bool(job.activations.compile),
        framework=job.framework.name, source=job.model.source or "huggingface", method=method.kind or "full", base=method.base or "none",
        optimizer=_optimizer(job), sm=run.card.sm if run.card else None,
        parameters_away=away("parameters"), gradients_away=away("gradients"), optimizer_away=away("optimizer") or job.optimizer.name == "cpu-adam",
        parked=_parked(job),
        counts=count(arch, job, blocks, tensor=tensor, expert=expert, expert_tensor=expert_tensor, embedding=has_embedding, head=has_head),
    )  # fmt: skip


def _tokens(job: Job) -> tuple[int, int]:
    batch = job.batch
    seq = batch.seq_len
    if batch.lengths is not None and batch.packed is False and batch.lengths.max is not None:
        seq = min(seq, batch.lengths.max) if seq else batch.lengths.max
    if batch.token_budget is not None:
        return 1, batch.token_budget
    if seq is None:
        raise CannotEstimate("batch.seq_len", "the sequence length is not known: give batch.seq_len (tokens of the longest sequence)")
    if batch.micro_batch is None:
        raise CannotEstimate("batch.micro_batch", "the micro batch is not known: give batch.micro_batch (sequences a forward pass on one GPU)")
    return batch.micro_batch, seq


def _present(run: Run, job: Job) -> frozenset[str]:
    phases = {"load", "forward", "loss", "backward", "step"}
    if job.rollout is not None and job.rollout.placement != "separate":
        phases |= {"rollout", "sync"}
    for section in ("eval", "save", "resume"):
        if getattr(job, section) is not None:
            phases.add(section)
    if job.save is not None and job.save.merge not in (None, "none"):
        phases.add("merge")
    for deviation in run.deviations:  # a fault at a save is one, whether or not the job says how it saves
        phases.update(deviation.phases)
    return at.of_phases(phases) | (frozenset({at.SCORE}) if job.rollout is not None else frozenset())
