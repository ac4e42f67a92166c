"""What torch does not count as allocated: the allocator's cache, the CUDA context, and the communication library's own buffers."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import FSDP, Context
from advisor.ledger import OUTSIDE_ALLOCATED, Holding
from advisor.units import MIB

# What nvidia-smi shows for a process that has touched the card and little more: 274 MiB with modules loaded lazily, 636 MiB eagerly (pytorch
# PR 86509, CUDA 11.7), about 400 MB (NVIDIA's answer in pytorch issue 109888), 426 MiB (unsloth-zoo issue 1053, torch 2.10, CUDA 13.0).
CONTEXT_LOW, CONTEXT, CONTEXT_HIGH = 274 * MIB, 426 * MIB, 636 * MIB
CONTEXT_EAGER = 1343 * MIB  # before torch 1.13 every kernel was loaded: 1,343 MiB on a V100 (transformers docs, model_memory_anatomy)
# NCCL: one buffer a channel, direction and protocol (NCCL_BUFFSIZE 4 MiB for Simple; LL128 about as much; LL half a MiB), 16 channels, 2 directions
NCCL = 16 * 2 * (4 * MIB + 4 * MIB + MIB // 2)
# Quoted: sequences of varied length leave blocks of every length in the cache: reserved over peak of what comes and goes, median of 18 replays of the
# allocator's rules over 800 steps (uniform and log-normal lengths, three shapes): tests/arithmetic/replay.py.
# No closed form is known: it depends on the order in which the lengths come.
VARIED_LOW, VARIED, VARIED_HIGH = 1.06, 2.28, 4.65
VARIED_ERROR = f"{VARIED_LOW} to {VARIED_HIGH} x what comes and goes in the replays"
PADS = frozenset({"hf-trainer", "trl", "ms-swift", "axolotl", "llama-factory", "openrlhf"})  # pad each batch to its longest and never empty the cache
# Quoted: collectives allocate on streams of their own, and the sum of the streams' peaks was 9 to 17 % below reserved when the allocations of
# real FSDP2 code under fake tensors were replayed through the allocator's rules (ten torchtitan jobs); the middle of that range.
STREAMS_SHORT_LOW, STREAMS_SHORT_HIGH = 0.09, 0.17
STREAMS_SHORT = (STREAMS_SHORT_LOW + STREAMS_SHORT_HIGH) / 2
EXPANDS = frozenset({"torchtitan"})  # its run_train.sh sets expandable_segments:True
# What never serves other requests: logits are single blocks far larger than the rest, and what comes later (optimizer
# states, gradients, activations) splits them; collectives allocate on streams of their own, and a block serves only its stream.
APART = frozenset({"logits", "communication"})
SMALL = 1 * MIB  # kSmallSize: tensors up to it come from a pool of their own, whose segments serve nothing larger


def expandable(ctx: Context) -> bool:
    """Whether segments can grow. What lives in their middle still leaves holes: only the end of a segment grows."""
    stated = (ctx.job.framework.allocator or {}).get("expandable_segments")
    return ctx.framework in EXPANDS if stated is None else bool(stated)


def outside(ctx: Context, held: Sequence[Holding]) -> list[Holding]:
    """Cache and context for what is held."""
    loaded = context_bytes(ctx)
    context = Holding(
        "context", "CUDA context and loaded kernels", loaded, at.ALWAYS, "measured on other processes", {"bytes": loaded},
        "pytorch PR 86509, issue 109888; unsloth-zoo issue 1053; transformers docs for torch before 1.13",
        error="274 to 636 MiB by CUDA version, driver and kernels used",
    )  # fmt: skip
    out = [context]
    if ctx.shard * ctx.replicate * ctx.tensor * ctx.pipeline > 1:
        groups = 1 + (ctx.tensor > 1) + (ctx.pipeline > 1) + (ctx.expert > 1) + (ctx.context > 1)
        nccl = Holding(
            "context", "NCCL buffers", NCCL * groups, at.ALWAYS, "communicators x channels x directions x buffer_bytes",
            {"communicators": groups, "channels": 16, "directions": 2, "buffer_bytes": NCCL // 32},
            "NCCL user guide, NCCL_BUFFSIZE; channels by topology", error="0.1 to 1 GiB a communicator by topology; not measured here",
        )  # fmt: skip
        out.append(nccl)
    peak, apart = spread(held, small_parts(ctx))
    varied = ctx.job.batch.packed is False and ctx.framework in PADS
    moving = max(0, peak - resting(held))
    if expandable(ctx) and any(h.part == "communication" and h.device == "gpu" for h in held):
        cache = max(0, _grown(ctx, held) - peak)
    else:
        cache = max(apart - peak, round((VARIED - 1) * moving) if varied and not expandable(ctx) else 0)
    usable = ctx.run.usable
    if usable is not None:  # at the edge the allocator frees its cache and asks again
        room = usable[0] - sum(h.bytes for h in out) - peak
        cache = max(0, min(cache, room))
    cached = Holding(
        "allocator",
        "cached blocks of other moments",
        cache,
        at.ALWAYS,
        "parts_apart - peak; with varied lengths at least (varied - 1) x comes_and_goes",
        {"parts_apart": apart, "peak": peak, "expandable_segments": expandable(ctx), "varied": VARIED if varied else 1, "comes_and_goes": moving},
        "c10/cuda/CUDACachingAllocator.cpp: freed blocks stay cached; one that was split for another size no longer serves the size it had",
        error=VARIED_ERROR if varied else "-10 to +1 % of reserved in replays of seven jobs' real allocations (probe: 1B to 7B, full, LoRA, QLoRA)",
    )  # fmt: skip
    return [*out, cached]


def context_bytes(ctx: Context) -> int:
    """Bytes of the CUDA context."""
    version = ctx.version("torch")
    return CONTEXT_EAGER if version is not None and version < (1, 13) else CONTEXT


def spread(held: Sequence[Holding], small: frozenset[str] = frozenset()) -> tuple[int, int]:
    """The largest moment, and the largest moments of logits, of collectives, of the small pool and of everything else, added."""
    together: dict[tuple[str, frozenset[str]], int] = {}
    for h in held:
        if h.device == "gpu" and h.part not in OUTSIDE_ALLOCATED:
            key = ("small" if h.part in small else h.part if h.part in APART else "rest", h.moments)
            together[key] = together.get(key, 0) + h.bytes
    moments: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for (part, alive), size in together.items():
        own = parts.setdefault(part, {})
        for moment in alive:
            moments[moment] = moments.get(moment, 0) + size
            own[moment] = own.get(moment, 0) + size
    return max(moments.values(), default=0), sum(max(p.values()) for p in parts.values())


def small_parts(ctx: Context) -> frozenset[str]:
    """Parts that live in the small pool: gradients and states of adapters, where their matrices are small enough."""
    c = ctx.counts
    if not c.adapters or c.trained:
        return frozenset()
    largest = max((i.elements for u in c.units for i in u.items if i.fate == "adapter"), default=0)  # both matrices of one adapter
    return frozenset({"gradients", "optimizer"}) if largest * ctx.adapter <= 2 * SMALL else frozenset()


def _grown(ctx: Context, held: Sequence[Holding]) -> int:
    """Reserved bytes where segments grow and collectives have streams of their own."""
    return round(joined(held) / (1 - (STREAMS_SHORT if ctx.strategy in FSDP else 0.0)))


def joined(held: Sequence[Holding]) -> int:
    """The largest moment of collectives' buffers and the largest of everything else, added."""
    _, collectives = spread([h for h in held if h.part == "communication"])
    rest, _ = spread([h for h in held if h.part != "communication"])
    return collectives + rest


def resting(held: Sequence[Holding]) -> int:
    """What is there in every moment of the step: it never returns to the cache."""
    return sum(h.bytes for h in held if h.device == "gpu" and h.part not in OUTSIDE_ALLOCATED and at.FORWARD in h.moments and at.STEP in h.moments)
