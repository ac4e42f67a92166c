"""What torch does not count as allocated: the allocator's cache, the CUDA context, and the communication library's own buffers."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.arithmetic import evaluation, logits
from advisor.arithmetic import moments as at
from advisor.arithmetic.cached_blocks import spread
from advisor.arithmetic.context import FSDP, Context
from advisor.arithmetic.displaced import displaced
from advisor.arithmetic.fsdp1 import waiting
from advisor.arithmetic.sharding import split, state_ranks
from advisor.ledger import OUTSIDE_ALLOCATED, Holding
from advisor.units import MIB

# What nvidia-smi shows for a process that has touched the card and little more: 274 MiB with modules loaded lazily, 636 MiB eagerly (pytorch
# PR 86509, CUDA 11.7), about 400 MB (NVIDIA's answer in pytorch issue 109888), 426 MiB (unsloth-zoo issue 1053, torch 2.10, CUDA 13.0).
CONTEXT_LOW, CONTEXT, CONTEXT_HIGH = 274 * MIB, 426 * MIB, 636 * MIB
CONTEXT_EAGER = 1343 * MIB  # before torch 1.13 every kernel was loaded: 1,343 MiB on a V100 (transformers docs, model_memory_anatomy)
# NCCL: one buffer a channel, direction and protocol (NCCL_BUFFSIZE 4 MiB for Simple; LL128 about as much; LL half a MiB), 16 channels, 2 directions
NCCL = 16 * 2 * (4 * MIB + 4 * MIB + MIB // 2)
# Quoted: each batch longer than any before finds no block of its size in the cache. In units of the loss's largest blocks (three fp32 of the vocabulary
# in ForCausalLMLoss) the cache grew, in replays of the arithmetic's own tape (tests/arithmetic/replay.py: five jobs, lengths uniform and log-normal below
# the bound), after 100 batches by 2.23 in the median, after 300 by 2.92, after 1,000 by 3.33; 0.6 to 6.6 between the 5th percentile of the first and the
# 95th of the last. The number of batches is not part of a job: a hundred are taken. Where blocks keep all activations these are the larger part: their
# growth was 0.9 to 1.1 times what comes and goes; where neither logits nor activations are whole, 0.12 to 0.6 (median 0.18).
GROWS_LOGITS, GROWS_KEPT, GROWS_CHUNKED = 2.23, 1.0, 0.18
# Quoted: a recomputed block's pieces come and go in many sizes, and checkpoints are born among them, so that a freed one serves another only in part.
# In replays of the arithmetic's own tape (tests/arithmetic/replay.py: six models, LoRA and QLoRA, with and without kernels, 2 and 8 sequences) what stayed
# reserved beyond the step's peak was 0.46 of the running block's bytes in the median, 0.18 to 0.82 between the 5th and 95th percentile; replays of eight
# single-card runs with a fused linear loss were within 0.1 GiB of what those showed (fms-acceleration).
TURNED, TURNED_LEAST, TURNED_MOST = 0.46, 0.18, 0.82
GROWS_LEAST, GROWS_MOST = 0.6 / GROWS_LOGITS, 6.6 / GROWS_LOGITS
VARIED_ERROR = "0.6 to 6.6 largest blocks of the loss in the replays; by the order in which the lengths come and their number"
PADS = frozenset({"hf-trainer", "trl", "ms-swift", "axolotl", "llama-factory", "openrlhf", "torchtune"})  # pad to a batch's longest and never empty the cache
# Quoted: collectives allocate on streams of their own, and the sum of the streams' peaks was 9 to 17 % below reserved when the allocations of
# real FSDP2 code under fake tensors were replayed through the allocator's rules (ten torchtitan jobs); the middle of that range.
STREAMS_SHORT_LOW, STREAMS_SHORT_HIGH = 0.09, 0.17
STREAMS_SHORT = (STREAMS_SHORT_LOW + STREAMS_SHORT_HIGH) / 2
EXPANDS = frozenset({"torchtitan"})  # its run_train.sh sets expandable_segments:True
NCCL_LOW, NCCL_HIGH = 100 * MIB, 1024 * MIB  # a communicator, by topology and number of channels; quoted, not measured here
AT_LEAST, AT_MOST = "at least", "at most"  # in the values of what lies outside: its own range, bytes
SMALL = 1 * MIB  # kSmallSize: tensors up to it come from a pool of their own, whose segments serve nothing larger


def expandable(ctx: Context) -> bool:
    """Whether segments can grow. What lives in their middle still leaves holes: only the end of a segment grows."""
    stated = (ctx.job.framework.allocator or {}).get("expandable_segments")
    return ctx.framework in EXPANDS if stated is None else bool(stated)


def outside(ctx: Context, held: Sequence[Holding]) -> list[Holding]:
    """Cache and context for what is held."""
    loaded = context_bytes(ctx)
    own = {"bytes": loaded, AT_LEAST: min(loaded, CONTEXT_LOW), AT_MOST: max(loaded, CONTEXT_HIGH)}
    context = Holding(
        "context", "CUDA context and loaded kernels", loaded, at.ALWAYS, "measured on other processes", own,
        "pytorch PR 86509, issue 109888; unsloth-zoo issue 1053; transformers docs for torch before 1.13",
        error="274 to 636 MiB by CUDA version, driver and kernels used",
    )  # fmt: skip
    out = [context]
    if ctx.shard * ctx.replicate * ctx.tensor * ctx.pipeline > 1:
        groups = 1 + (ctx.tensor > 1) + (ctx.pipeline > 1) + (ctx.expert > 1) + (ctx.context > 1)
        nccl = Holding(
            "context", "NCCL buffers", NCCL * groups, at.ALWAYS, "communicators x channels x directions x buffer_bytes",
            {"communicators": groups, "channels": 16, "directions": 2, "buffer_bytes": NCCL // 32, AT_LEAST: NCCL_LOW * groups, AT_MOST: NCCL_HIGH * groups},
            "NCCL user guide, NCCL_BUFFSIZE; channels by topology", error="0.1 to 1 GiB a communicator by topology; not measured here",
        )  # fmt: skip
        out.append(nccl)
    blocks, largest = logits.cached(ctx)
    small = small_share(ctx)
    sums = spread(held, small)
    peak = sums.peak
    (least, _), (reused, apart), (_, most) = sums.reserved(blocks, (TURNED_LEAST, TURNED, TURNED_MOST))
    beyond = evaluation.apart(ctx, held)
    if beyond:  # the largest free blocks, the loss's, serve the evaluation's tensors at best; the others do not
        training = spread([h for h in held if not h.moments <= evaluation.ONLY], small)
        (_, _), (trains, _), (_, _) = training.reserved(blocks, (TURNED_LEAST, TURNED, TURNED_MOST))
        reused, apart, most = (max(a, b) for a, b in ((reused, trains + beyond - blocks), (apart, trains + beyond), (most, trains + beyond)))
    late = waiting(ctx) if ctx.strategy == "fsdp1" else 0
    reused, apart, least, most, joined = (size + late for size in (reused, apart, least, most, sums.joined))
    varied = ctx.job.batch.packed is False and ctx.framework in PADS and not expandable(ctx)
    growth = grown(largest, max(0, peak - resting(held)), kept=ctx.checkpointing != "full") if varied else 0
    if expandable(ctx) and any(h.part == "communication" and h.device == "gpu" for h in held):
        short = (STREAMS_SHORT, STREAMS_SHORT_LOW, STREAMS_SHORT_HIGH) if ctx.strategy in FSDP else (0.0, 0.0, 0.0)
        cache, low, high = (max(0, round(joined / (1 - s)) - peak) for s in short)
    else:
        serves = _served(ctx, small, reused, apart)
        cache = max(serves - peak, growth)
        low, high = max(least - peak, round(GROWS_LEAST * growth)), max(most - peak, round(GROWS_MOST * growth))
        lost = displaced(ctx, held)
        cache, high = max(cache, lost), max(high, lost)
    usable = ctx.run.usable
    if usable is not None:  # at the edge the allocator frees its cache and asks again
        room = usable[0] - sum(h.bytes for h in out) - peak
        cache, low, high = (max(0, min(size, room)) for size in (cache, low, high))
    cached = Holding(
        "allocator",
        "cached blocks of other moments",
        cache,
        at.ALWAYS,
        "blocks_reused, or its middle with parts_apart, - peak; with varied lengths at least growth",
        {
            "blocks_reused": reused, "parts_apart": apart, "peak": peak, "freed_late": late, "expandable_segments": expandable(ctx), "growth": growth,
            AT_LEAST: low, AT_MOST: high,
        },
        "c10/cuda/CUDACachingAllocator.cpp: freed blocks stay cached; one that was split for another size no longer serves the size it had",
        error=VARIED_ERROR if varied else "between blocks reused wherever they fit in time, and logits' blocks split for good by what comes later",
    )  # fmt: skip
    return [*out, cached]


def _served(ctx: Context, small: float, reused: int, apart: int) -> int:
    """What the cache takes between the two figures, by what the first step's states are born into.

    Those of adapters that all live in the small pool split no block of the loss (advisor probe of real steps on one card, and eleven runs whose nvidia-smi
    figure is public: off by 4 % in the median). Of whole training the gradients fill some of those blocks and leave the others to the states; and where
    other streams free late, no order repeats.
    """
    return reused if small == 1.0 and ctx.strategy == "none" else (reused + apart) // 2


def grown(largest: int, moving: int, *, kept: bool) -> int:
    """Bytes by which batches of varied length grow the cache: by the loss's ``largest`` blocks, or by what comes and goes (``kept``: all activations)."""
    return round(max(GROWS_LOGITS * largest, (GROWS_KEPT if kept else GROWS_CHUNKED) * moving))


def context_bytes(ctx: Context) -> int:
    """Bytes of the CUDA context."""
    version = ctx.version("torch")
    return CONTEXT_EAGER if version is not None and version < (1, 13) else CONTEXT


def small_share(ctx: Context) -> float:
    """How much of the adapters' gradients and states lives in the small pool: those of matrices of up to 1 MiB.

    None where more than adapters trains.
    """
    c, ranks = ctx.counts, state_ranks(ctx)
    if not c.adapters or c.trained:
        return 0.0
    small = 0
    for unit in c.units:
        for i in unit.items:
            if i.fate == "adapter":
                a = i.rows * i.columns  # elements of A; the rest is B
                small += unit.layers * i.times * sum(m for m in (a, i.elements - a) if split(m, ranks) * ctx.adapter <= SMALL)
    return min(1.0, small / c.adapters)


def resting(held: Sequence[Holding]) -> int:
    """What is there in every moment of the step: it never returns to the cache."""
    return sum(h.bytes for h in held if h.device == "gpu" and h.part not in OUTSIDE_ALLOCATED and at.FORWARD in h.moments and at.STEP in h.moments)
