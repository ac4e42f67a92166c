"""Dividing state over data-parallel ranks. The number of GPUs and the effective batch stay."""

from __future__ import annotations

from typing import Any

from advisor.run import Run
from advisor.techniques.conditions import (
    ACCELERATE,
    DEEPSPEED,
    FSDP,
    FSDP_NATIVE,
    QUANTIZED_BNB,
    ZERO,
    cards_present,
    data_ranks,
    first,
    framework_lacks,
    trains_adapters,
    version,
)  # fmt: skip
from advisor.techniques.curing import cured, ineffective
from advisor.techniques.technique import Flags, NotApplicable, technique

ORDER = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3, "megatron": 0, "megatron-distributed": 1, "megatron-fsdp": 3}
SMALL_BUCKET = 50_000_000  # elements: a tenth of DeepSpeed's default 5e8 (runtime/zero/config.py); 100 MB in bf16


def _ranks(run: Run) -> tuple[int, dict[str, Any]]:
    """Ranks to divide over, and what keeps the effective batch where cards that stood idle join."""
    p, b = run.job.parallel, run.job.batch
    now = max(1, (p.shard or 1) * (p.replicate or 1))
    there = max(now, cards_present(run) // max(1, (p.tensor or 1) * (p.pipeline or 1)))
    if there == now or p.device_map:
        return now, {}
    joined, accumulation = there // now, b.gradient_accumulation or 1
    for factor in range(joined, 0, -1):
        if accumulation % factor == 0:
            return now * factor if factor > 1 else now, {"gradient_accumulation": accumulation // factor} if factor > 1 else {}
    return now, {}


def _precision_of(run: Run, engine: str) -> dict[str, dict[str, Any]]:
    """Widths as the engine keeps them: DeepSpeed 16-bit weights with an fp32 master; FSDP fp32 shards with a 16-bit compute copy (accelerate)."""
    precision = run.job.precision
    compute = precision.compute if precision.compute in ("bf16", "fp16") else "bf16"
    if trains_adapters(run) or run.job.method.kind == "freeze":
        return {"precision": {"mixed": engine}} if precision.mixed in (None, "none", "autocast") and precision.weights != "fp32" else {}
    if engine == "deepspeed":
        return {
            "precision": {"weights": compute, "gradients": compute, "master": "fp32", "mixed": "deepspeed", "compute": compute},
            **({"optimizer": {"states": "fp32"}} if run.job.optimizer.states in ("bf16", "fp16") else {}),
        }
    if precision.weights in ("bf16", "fp16") and precision.master in (None, "none") and precision.mixed in (None, "none"):
        return {}  # pure 16-bit training stays what it is
    return {
        "precision": {"weights": "fp32", "gradients": "fp32", "master": "none", "mixed": "fsdp", "compute": compute},
        **({"optimizer": {"states": "fp32"}} if run.job.optimizer.states in ("bf16", "fp16") else {}),
    }


def _same_width(before: Run, after: Run) -> Flags:
    """Dividing is exact; where the engine also brings an fp32 master, results differ (for the better) in the last bits."""
    return Flags(exact=before.job.precision == after.job.precision, alters_learning=False)


def _refusal(run: Run, target: str) -> str | None:
    p = run.job.parallel
    strategy = p.strategy or "none"
    ranks, _ = _ranks(run)
    if strategy.startswith("megatron"):
        return "Megatron divides optimizer state with its own distributed optimizer (zero-1), and no ZeRO stage or FSDP goes on top of its layout"
    if ORDER.get(strategy, 0) >= ORDER[target] and (p.shard or 1) > 1 and not any(ineffective("parallel.strategy")(d) for d in run.deviations):
        return f"{strategy} divides as much already"
    if target in FSDP and strategy in ZERO and run.job.framework.name in ACCELERATE - {"custom"}:
        return f"the job has a DeepSpeed config ({strategy}), beside which the trainer refuses FSDP: raise the ZeRO stage instead"
    if ranks == 1:
        return "the job has one rank, so there is nothing to divide over"
    if p.device_map:
        return "a device map spreads the layers over the cards in one process; take it away before dividing"
    if run.job.framework.name == "unsloth":
        return "unsloth patches the model in ways that sharding wrappers cannot divide"
    if target in FSDP and run.job.method.base == "int8":
        return "FSDP cannot divide bitsandbytes' int8 weights: only a 4-bit base with a float storage type can be"
    if run.job.method.kind == "galore" and target not in ("zero1",):
        return "GaLore projects whole gradient matrices, which a sharded run does not have"
    if run.job.optimizer.in_backward and target in ZERO:
        return "DeepSpeed owns the optimizer step, so it cannot run inside the backward pass"
    return None


def _megatron(run: Run) -> Run | NotApplicable:
    """Megatron's distributed optimizer: fp32 masters and moments divided over the data-parallel ranks; weights and the gradient buffer stay whole.

    bf16 weights with fp32 gradients: 18 bytes a parameter become 6 + 12/ranks; 16-bit gradients (whose fp32 copy is divided too): 20 become 4 + 16/ranks
    (Megatron Core developer guide, api-guide/dist_optimizer; core/optimizer/distrib_optimizer.py).
    """
    strategy, ranks = run.job.parallel.strategy, data_ranks(run)
    if strategy != "megatron":
        return NotApplicable(f"{strategy} divides as much already", settled=True)
    if ranks == 1:
        return NotApplicable("the job has one data-parallel rank (the others split layers and matrices), so there is nothing to divide over")
    return (cured(run, "replicated-state") or run).but(parallel={"strategy": "megatron-distributed", "shard": ranks, "replicate": 1})


def _zero(run: Run, stage: str) -> Run | NotApplicable:
    if stage == "zero3" and run.job.method.base in QUANTIZED_BNB:
        return NotApplicable(f"ZeRO-3 cannot partition bitsandbytes' packed {run.job.method.base} weights (their storage is no float tensor)", settled=True)
    reason = first(framework_lacks(run, DEEPSPEED, "DeepSpeed ZeRO"), _refusal(run, stage))
    if reason:
        return NotApplicable(reason, settled=_ranks(run)[0] == 1)
    ranks, batch = _ranks(run)
    base = cured(run, "replicated-state", also=ineffective("parallel.strategy")) or run
    parallel: dict[str, Any] = {"strategy": stage, "shard": ranks, "replicate": 1}
    changes = _precision_of(run, "deepspeed")
    return base.but(parallel=parallel, **changes, **({"batch": batch} if batch else {}))


@technique("zero-1", tier="shard", flags=_same_width)
def zero_1(run: Run) -> Run | NotApplicable:
    """Each rank keeps the optimizer state (and fp32 master) of its share of the parameters."""
    if (run.job.parallel.strategy or "").startswith("megatron"):
        return _megatron(run)
    return _zero(run, "zero1")


@technique("zero-2", tier="shard", flags=_same_width)
def zero_2(run: Run) -> Run | NotApplicable:
    """As ZeRO-1, and each rank keeps the gradients of its share only."""
    return _zero(run, "zero2")


@technique("zero-3", tier="shard", flags=_same_width)
def zero_3(run: Run) -> Run | NotApplicable:
    """Parameters are divided too and gathered layer by layer when they are used."""
    return _zero(run, "zero3")


@technique("fsdp", tier="shard", flags=_same_width)
def fsdp(run: Run) -> Run | NotApplicable:
    """Fully sharded data parallel: parameters, gradients and state divided; each block gathered for its use."""
    reason = first(framework_lacks(run, (ACCELERATE | FSDP_NATIVE) - {"litgpt"}, "FSDP"), _refusal(run, "fsdp2"))
    if reason:
        return NotApplicable(reason, settled=_ranks(run)[0] == 1)
    ranks, batch = _ranks(run)
    base = cured(run, "replicated-state", also=ineffective("parallel.strategy")) or run
    torch = version(run, "torch")
    newer = torch is None or torch >= (2, 6)  # fully_shard is public from torch 2.6
    kind = "fsdp2" if newer and run.job.framework.name not in ("verl", "llm-foundry", "fsdp-qlora", "litgpt") else "fsdp1"
    parallel = {"strategy": kind, "shard": ranks, "replicate": 1, "reshard_after_forward": True}
    return base.but(parallel=parallel, **_precision_of(run, "fsdp"), **({"batch": batch} if batch else {}))


HYBRID = frozenset({"hf-trainer", "trl", "axolotl", "accelerate", "torchtune", "torchtitan", "verl", "custom"})


@technique("hybrid-shard", tier="shard")
def hybrid_shard(run: Run) -> Run | NotApplicable:
    """Divide within a node, replicate between nodes: gathers stay on the fast links."""
    p, per_node = run.job.parallel, run.job.hardware.gpus_per_node
    if reason := framework_lacks(run, HYBRID, "a shard group smaller than the job"):
        return NotApplicable(reason)
    if p.strategy not in FSDP:
        return NotApplicable(f"hybrid sharding is a form of FSDP (strategy {p.strategy or 'none'})")
    if per_node is None or (run.job.hardware.nodes or 1) == 1:
        return NotApplicable("the job runs on one node")
    width = per_node // max(1, p.tensor or 1)
    if width < 2 or (p.shard or 1) % width or (p.shard or 1) <= width:
        return NotApplicable(f"a shard group of {p.shard or 1} does not span several nodes of {per_node}")
    return run.but(parallel={"shard": width, "replicate": (p.replicate or 1) * (p.shard or 1) // width})


@technique("smaller-buckets", tier="shard")
def smaller_buckets(run: Run) -> Run | NotApplicable:
    """Smaller reduce, gather and prefetch buckets: more, shorter messages."""
    p = run.job.parallel
    freed = cured(run, "communication-buffers")
    if reason := framework_lacks(run, DEEPSPEED - {"openrlhf"}, "DeepSpeed's buckets"):
        return freed or NotApplicable(reason)
    if p.strategy not in ZERO:
        return freed or NotApplicable(f"only DeepSpeed's buckets are large by default (strategy {p.strategy or 'none'})")
    names = (
        ("bucket_elements", "allgather_bucket_elements", "prefetch_elements", "max_live_elements")
        if p.strategy == "zero3"
        else ("bucket_elements", "allgather_bucket_elements")
    )
    defaults = {"bucket_elements": 500_000_000, "allgather_bucket_elements": 500_000_000, "prefetch_elements": 50_000_000, "max_live_elements": 1_000_000_000}
    least = {"prefetch_elements": 5_000_000, "max_live_elements": 100_000_000}
    changed = {}
    for name in names:
        now = getattr(p, name)
        now = defaults[name] if now is None else now
        if now > least.get(name, SMALL_BUCKET):
            changed[name] = least.get(name, SMALL_BUCKET)
    if not changed:
        return freed or NotApplicable("the buckets are small already")
    return (freed or run).but(parallel=changed)


PREFETCH = ACCELERATE | {"llm-foundry"}


@technique("limit-all-gathers", tier="shard")
def limit_all_gathers(run: Run) -> Run | NotApplicable:
    """Keep few gathered blocks alive: rate-limited gathers, no forward keep, less prefetch."""
    p = run.job.parallel
    freed = cured(run, "communication-buffers")
    if p.strategy not in FSDP or data_ranks(run) == 1:
        return freed or NotApplicable(f"no parameters are gathered by FSDP (strategy {p.strategy or 'none'})")
    changed: dict[str, Any] = {}
    if p.limit_all_gathers is False:
        changed["limit_all_gathers"] = True
    if p.reshard_after_forward is False:
        changed["reshard_after_forward"] = True
    if not changed and p.prefetch in ("backward-pre",) and p.strategy == "fsdp1" and not framework_lacks(run, PREFETCH, "the prefetch of its gathers"):
        changed["prefetch"] = "backward-post"
    if not changed:
        return freed or NotApplicable("gathers are limited already")
    return (freed or run).but(parallel=changed)
