"""Dividing one model's computation: tensor, sequence, context, pipeline and expert parallelism. GPUs and the effective batch stay."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import FSDP, MEGATRON, ZERO, cards_present, data_ranks, framework_lacks
from advisor.techniques.technique import NotApplicable, technique

TENSOR = MEGATRON | {"torchtitan", "torchtune", "deepspeed", "hf-trainer", "colossalchat", "ms-swift", "custom"}
CONTEXT = MEGATRON | {"torchtitan", "axolotl", "trl", "accelerate", "ms-swift", "hf-trainer", "deepspeed", "arctic", "verl", "custom"}
ULYSSES = frozenset({"megatron-lm", "megatron-bridge", "deepspeed", "arctic", "verl", "accelerate", "hf-trainer", "trl", "ms-swift", "custom"})
PIPELINE = MEGATRON | {"torchtitan", "deepspeed", "colossalchat", "custom"}
EXPERT = MEGATRON | {"torchtitan", "deepspeed", "custom"}


def _heads(run: Run) -> tuple[int, int] | None:
    architecture = run.architecture
    blocks = [b for b in architecture.blocks if b.heads] if architecture is not None else []
    return (blocks[0].heads, blocks[0].kv_heads) if blocks else None


def _keep_batch(run: Run, factor: int) -> dict[str, Any]:
    """Fewer data-parallel ranks, so more micro-batches a step (in flight, under pipelining)."""
    p, b = run.job.parallel, run.job.batch
    if (p.pipeline or 1) > 1 and p.microbatches:
        return {"parallel_microbatches": p.microbatches * factor}
    return {"gradient_accumulation": (b.gradient_accumulation or 1) * factor}


def _steps_at_once(run: Run) -> str | None:
    """Fewer data-parallel ranks accumulate more, which a step inside the backward pass cannot (torchtune refuses it when it starts)."""
    return "the samples of a step would have to be accumulated, and the step runs inside the backward pass" if run.job.optimizer.in_backward else None


def _from_data_ranks(run: Run, factor: int) -> dict[str, Any] | str:
    """Take ``factor`` from the data-parallel ranks; the shard group first where strategies divide, else the replicas; or cards that stand idle."""
    p = run.job.parallel
    shard, replicate = p.shard or 1, p.replicate or 1
    if reason := _steps_at_once(run):
        return {} if cards_present(run) >= run.world * factor else reason
    if data_ranks(run) >= factor and replicate % factor == 0:
        return {"replicate": replicate // factor}
    if data_ranks(run) >= factor and shard % factor == 0 and (shard // factor) % (p.context or 1) == 0:
        return {"shard": shard // factor}
    if cards_present(run) >= run.world * factor:
        return {}
    return f"{data_ranks(run)} data-parallel rank(s) cannot give up a factor of {factor}"


def _divide(run: Run, taken: dict[str, Any], factor: int, **parallel: Any) -> Run:
    keep = _keep_batch(run, factor) if taken else {}
    microbatches = keep.pop("parallel_microbatches", None)
    changes: dict[str, Any] = {"parallel": {**taken, **parallel, **({"microbatches": microbatches} if microbatches else {})}}
    if keep:
        changes["batch"] = keep
    return run.but(**changes)


@technique("tensor-parallel", tier="shard")
def tensor_parallel(run: Run) -> Run | NotApplicable:
    """Split each matrix over ranks of one node; every layer then exchanges its activations twice."""
    p = run.job.parallel
    if reason := framework_lacks(run, TENSOR, "tensor parallelism") or _accelerate_lacks(run, "tensor"):
        return NotApplicable(reason)
    if run.job.method.base not in (None, "none"):
        return NotApplicable("a quantised base is packed whole and cannot be split by rows and columns")
    now = p.tensor or 1
    wanted, per_node = now * 2, run.job.hardware.gpus_per_node or 1
    if wanted > per_node:
        return NotApplicable(f"tensor parallelism over {wanted} ranks would leave the node of {per_node} GPU(s): every layer would wait for the network")
    heads = _heads(run)
    if heads is not None and heads[0] % wanted:
        return NotApplicable(f"{heads[0]} attention heads cannot be divided by {wanted}")
    taken = _from_data_ranks(run, 2)
    if isinstance(taken, str):
        return NotApplicable(taken)
    beside = {"sequence": True} if run.job.framework.name in MEGATRON else {}  # every recipe of Megatron has it beside a tensor group
    return _divide(run, taken, 2, tensor=wanted, **beside)


@technique("sequence-parallel", tier="shard")
def sequence_parallel(run: Run) -> Run | NotApplicable:
    """Split what tensor parallelism leaves whole (norms, dropout, residual stream) along the sequence."""
    p = run.job.parallel
    if reason := framework_lacks(run, MEGATRON | {"torchtitan", "custom"}, "sequence parallelism inside a tensor group"):
        return NotApplicable(reason)
    if (p.tensor or 1) == 1:
        return NotApplicable("there is no tensor group to divide the sequence over")
    if p.sequence:
        return NotApplicable("sequence parallelism is on already")
    return run.but(parallel={"sequence": True})


def _context(run: Run, kind: str, able: frozenset[str], what: str) -> Run | NotApplicable:
    p, seq_len = run.job.parallel, run.job.batch.seq_len
    if reason := framework_lacks(run, able, what):
        return NotApplicable(reason)
    now = p.context or 1
    wanted = now * 2
    if now > 1 and p.context_kind not in (None, kind):
        return NotApplicable(f"the sequence is divided by {p.context_kind} already")
    if seq_len is not None and seq_len % (2 * wanted):
        return NotApplicable(f"a sequence of {seq_len:,} tokens cannot be cut into {2 * wanted} equal pieces")
    architecture = run.architecture
    if architecture is not None and not any(b.kind == "attention" for b in architecture.blocks):
        return NotApplicable("only attention layers exchange keys and values; a state-space mixer passes its state along the sequence")
    if architecture is not None and not architecture.causal:
        return NotApplicable("context parallelism is made for causal attention")
    shard, replicate = p.shard or 1, p.replicate or 1
    if (reason := _steps_at_once(run)) and cards_present(run) < run.world * 2:
        return NotApplicable(reason)
    if data_ranks(run) >= 2 and not reason and shard % wanted == 0:
        return _divide(run, {"context_kind": kind}, 2, context=wanted)
    if data_ranks(run) >= 2 and not reason and replicate % 2 == 0:
        return _divide(run, {"shard": shard * 2, "replicate": replicate // 2}, 2, context=wanted, context_kind=kind)
    if cards_present(run) >= run.world * 2:
        strategy = p.strategy if p.strategy in FSDP | {"zero1", "zero2", "zero3"} or (p.strategy or "").startswith("megatron") else "fsdp2"
        return run.but(parallel={"context": wanted, "context_kind": kind, "shard": shard * 2, "strategy": strategy})
    return NotApplicable(f"{data_ranks(run)} data-parallel rank(s) cannot be divided along the sequence")


THROUGH_ACCELERATE = frozenset({"hf-trainer", "trl", "accelerate"})


def _accelerate_lacks(run: Run, kind: str) -> str | None:
    """accelerate's ParallelismConfig divides the sequence only beside certain strategies."""
    strategy = run.job.parallel.strategy or "none"
    if run.job.framework.name not in THROUGH_ACCELERATE:
        return None
    if kind == "ring" and strategy != "fsdp2":
        return f"accelerate's context parallelism goes with FSDP2, and the job runs {strategy}"
    if kind == "ulysses" and strategy not in ZERO:
        return f"accelerate's Ulysses is DeepSpeed's and goes with ZeRO, and the job runs {strategy}"
    if kind == "tensor" and strategy not in ZERO | {"fsdp2", "none"}:
        return f"tensor parallelism goes with FSDP2 or with DeepSpeed here, and the job runs {strategy}"
    return None


@technique("context-parallel", tier="shard")
def context_parallel(run: Run) -> Run | NotApplicable:
    """Cut each sequence over ranks and pass keys and values round a ring while attention is computed block by block."""
    if reason := _accelerate_lacks(run, "ring"):
        return NotApplicable(reason)
    return _context(run, "ring", CONTEXT, "context parallelism")


@technique("ulysses", tier="shard")
def ulysses(run: Run) -> Run | NotApplicable:
    """Cut each sequence over ranks, and exchange it for heads around attention (two all-to-alls)."""
    wanted = (run.job.parallel.context or 1) * 2
    heads = _heads(run)
    if heads is not None and (heads[0] % wanted or heads[1] % wanted):
        return NotApplicable(f"{heads[0]} query heads and {heads[1]} key-value heads cannot both be divided by {wanted}")
    if reason := _accelerate_lacks(run, "ulysses"):
        return NotApplicable(reason)
    return _context(run, "ulysses", ULYSSES, "Ulysses sequence parallelism")


@technique("pipeline-parallel", tier="shard")
def pipeline_parallel(run: Run) -> Run | NotApplicable:
    """Give each rank some of the layers; micro-batches follow each other through the stages."""
    p, b = run.job.parallel, run.job.batch
    if reason := framework_lacks(run, PIPELINE, "pipeline parallelism"):
        return NotApplicable(reason)
    if p.strategy in ("zero2", "zero3"):
        return NotApplicable(f"DeepSpeed's pipeline works with ZeRO-1 at most, not with {p.strategy}")
    if run.job.framework.name == "nemo" and not (p.strategy or "").startswith("megatron"):
        return NotApplicable("NeMo's DTensor backend has no pipeline; its Megatron backend has")
    if p.pipeline_layout:
        return NotApplicable("the stages' layers are laid out by hand; change the layout itself")
    now = p.pipeline or 1
    wanted = now * 2
    layers = run.architecture.layers if run.architecture is not None else None
    if layers is not None and layers < wanted * (p.virtual_stages or 1):
        return NotApplicable(f"{layers} layers do not make {wanted} stages")
    taken = _from_data_ranks(run, 2)
    if isinstance(taken, str):
        return NotApplicable(taken)
    in_flight = (p.microbatches or 1) if now > 1 else (b.gradient_accumulation or 1)
    if taken:
        in_flight *= 2
    return run.but(
        parallel={**taken, "pipeline": wanted, "microbatches": in_flight, "pipeline_rank": "max"}, batch={"gradient_accumulation": 1} if now == 1 else {}
    )


@technique("expert-parallel", tier="shard")
def expert_parallel(run: Run) -> Run | NotApplicable:
    """Give each rank some of the experts; tokens travel to theirs and back."""
    architecture, p = run.architecture, run.job.parallel
    if architecture is not None and not architecture.expert_parameters:
        return NotApplicable("the model has no experts")
    if reason := framework_lacks(run, EXPERT, "expert parallelism"):
        return NotApplicable(reason)
    experts = max((b.experts.number for b in architecture.blocks if b.experts), default=0) if architecture is not None else 0
    wanted = (p.expert or 1) * 2
    ranks = (p.shard or 1) * (p.replicate or 1) * (p.tensor or 1)
    if wanted > ranks or ranks % wanted:
        return NotApplicable(f"{ranks} rank(s) cannot hold {wanted} groups of experts")
    if experts and experts % wanted:
        return NotApplicable(f"{experts} experts cannot be divided by {wanted}")
    return run.but(parallel={"expert": wanted})
