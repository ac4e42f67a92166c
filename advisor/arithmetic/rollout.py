"""The engine that generates text beside the trainer, and the hand-over of weights to it.

Sources: vLLM v1/worker/gpu_worker.py determine_available_memory and utils request_memory (its budget is a share of the card's total),
config and docs of sleep levels; SGLang mem_fraction_static (a share of what is free); verl, TRL, OpenRLHF for the hand-over's grain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.dtypes import bytes_of
from advisor.arithmetic.layouts import stored
from advisor.ledger import OUTSIDE_ALLOCATED, Holding
from advisor.units import GIB, MIB

GRAPHS = 635 * MIB  # median of eleven start-up lines of colocated vLLM engines (0.04 to 1.15 GiB), unslothai/notebooks printed outputs
BUCKET = 2048 * MIB  # verl rollout.update_weights_bucket_megabytes
BUDGET = {
    "vllm": "vLLM v1/worker/gpu_worker.py determine_available_memory: the cache takes what the budget leaves",
    "sglang": "SGLang mem_fraction_static",
}
QUANTISED = {"awq-int4": "awq-int4", "gptq-int4": "gptq-int4", "nf4": "nf4", "fp8": "fp8"}


def holdings(ctx: Context, held: Sequence[Holding]) -> Iterator[Holding]:
    """Weights, cache and graphs of a colocated engine, and what the hand-over gathers."""
    r = ctx.job.rollout
    if r is None or r.placement == "separate":
        return
    size, dtype = _weights(ctx)
    asleep = r.sleep in ("level-1", "level-2")
    awake = frozenset({at.GENERATE}) if asleep else ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}
    if not r.shares_weights:
        yield Holding(
            "rollout-weights", "engine's weights", size, (awake | {at.HANDOVER}) & ctx.moments, "elements x bytes_each / engine_ranks",
            {"elements": ctx.arch.parameters, "bytes_each": dtype, "engine_ranks": r.tensor or 1}, "vLLM gpu_model_runner.load_model", dtype=r.weights,
            copy_of="trained weights" if ctx.counts.trained else "frozen weights", need="replaceable" if not asleep else "needed",
        )  # fmt: skip
        if r.sleep == "level-1":
            yield Holding(
                "rollout-weights", "engine's weights asleep on the host", size, ctx.moments - {at.GENERATE}, "elements x bytes_each / engine_ranks",
                {"elements": ctx.arch.parameters, "bytes_each": dtype, "engine_ranks": r.tensor or 1},
                "vLLM device_allocator/cumem.py: level 1 keeps them pinned",
                device="host",
            )  # fmt: skip
    yield from _cache(ctx, 0 if r.shares_weights else size, awake, held)
    yield from _handover(ctx)


def _weights(ctx: Context) -> tuple[int, int]:
    r = ctx.job.rollout
    assert r is not None
    ranks, n = r.tensor or 1, ctx.arch.parameters
    layout = QUANTISED.get(r.weights or "")
    if layout is None:
        each = bytes_of(r.weights, 2)
        return each * -(-n // ranks), each
    outer = sum(t.total for t in ctx.arch.outer)
    inner = max(0, n - outer)
    hidden = max(1, ctx.arch.hidden)
    return (2 * outer + stored(layout, -(-inner // hidden), hidden)) // ranks, 2


def token_bytes(ctx: Context, ranks: int) -> int:
    """Bytes of key and value of one token over all layers, on one engine rank (heads are replicated where there are fewer than ranks)."""
    total = 0
    for block in ctx.arch.blocks:
        if block.kind == "mixer":
            continue
        if block.latent is not None:
            total += block.count * 2 * (block.latent.kv_rank + block.latent.qk_rope)
            continue
        heads = max(1, block.kv_heads // ranks) if block.kv_heads else 0
        total += block.count * 2 * heads * (block.head_dim + block.v_head_dim)
    return total


def _cache(ctx: Context, weights: int, awake: frozenset[str], held: Sequence[Holding]) -> Iterator[Holding]:
    r = ctx.job.rollout
    assert r is not None
    if r.engine == "hf":
        sequences = r.max_sequences or ctx.micro_batch
        length = r.max_length or ctx.seq_len
        size = token_bytes(ctx, 1) * sequences * length
        yield Holding(
            "rollout-cache", "key-value cache of generation", size, ctx.moments & {at.GENERATE}, "sequences x length x bytes_a_token",
            {"sequences": sequences, "length": length, "bytes_a_token": token_bytes(ctx, 1)}, "transformers DynamicCache: keys and values of every layer",
        )  # fmt: skip
        return
    usable = ctx.run.usable
    if usable is None or r.memory_fraction is None:
        return
    total = usable[0]
    if r.fraction_of == "free":
        alive = sum(h.bytes for h in held if h.device == "gpu" and at.GENERATE in h.moments and h.part not in OUTSIDE_ALLOCATED)
        total = max(0, total - alive)
    budget = round(total * r.memory_fraction)
    version = ctx.version("vllm")
    inside = r.engine != "vllm" or version is None or version >= (0, 21)  # graphs are part of the budget since vLLM 0.21
    graphs = 0 if r.engine == "sglang" else GRAPHS
    cache = max(0, budget - weights - (graphs if inside else 0))
    values = {"budget": budget, "weights": weights, "graphs": graphs, "share": r.memory_fraction}
    cache_moments = awake | (frozenset({at.HANDOVER}) if r.wake == "at-once" or not r.sleep or r.sleep == "none" else frozenset())
    yield Holding(
        "rollout-cache", "engine's key-value cache and profile peak", cache, cache_moments & ctx.moments, "budget - weights - graphs", values,
        BUDGET.get(r.engine or "vllm", "the engine's memory fraction"),
    )  # fmt: skip
    if graphs:
        yield Holding(
            "rollout-graphs", "engine's CUDA graphs", graphs, ctx.moments - {at.LOAD_MATERIALISE, at.LOAD_READY}, "bytes", {"bytes": graphs},
            "unslothai/notebooks: what eleven colocated engines printed at start-up (median)", error="0.04 to 1.15 GiB in those",
        )  # fmt: skip


def _handover(ctx: Context) -> Iterator[Holding]:
    """Freshly gathered weights on their way to the engine."""
    r, c = ctx.job.rollout, ctx.counts
    assert r is not None
    if r.shares_weights or at.HANDOVER not in ctx.moments:
        return
    grain = r.sync or "tensor"
    whole = c.base + c.adapters
    block = max((u.elements for u in c.blocks), default=0)
    outer = max((i.elements for i in c.outer.items), default=0)
    each = ctx.weight
    sizes = {
        "tensor": c.largest * each,
        "layer": max(block, outer) * each,
        "bucket": max(min(BUCKET, whole * each), c.largest * each),
        "everything": whole * each,
    }
    divided = ctx.shard > 1 and ctx.strategy in ("fsdp1", "fsdp2", "zero3", "megatron-fsdp")
    if not divided and grain != "everything":
        return
    yield Holding(
        "communication", f"weights gathered for the hand-over ({grain} at once)", sizes[grain], frozenset({at.HANDOVER}), "elements x bytes_each",
        {"elements": sizes[grain] // max(1, each), "bytes_each": each}, "TRL generation/vllm_generation.py, verl rollout_mode, OpenRLHF ppo_actor broadcast",
        copy_of="trained weights" if c.trained else "frozen weights", need="avoidable" if grain == "everything" else "needed",
        error=None if grain != "bucket" else f"bucket of {BUCKET / GIB:.0f} GiB",
    )  # fmt: skip
