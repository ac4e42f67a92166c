"""DeepSpeed ZeRO: gradient partitions, reduce buckets, and the parameters that stage 3 gathers.

Source: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py, config.py (defaults); resting, backward and
step forms checked against the real engine on small tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import logits
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context, parse_version
from advisor.arithmetic.parameters import Item
from advisor.arithmetic.sharding import SUB_GROUP, learned_share, split
from advisor.arithmetic.zero_kept import kept_by_autograd
from advisor.arithmetic.zero_step import NORM, ONE_TENSOR, freed_before_update, joined
from advisor.job import Job
from advisor.ledger import Holding

BUCKET = 500_000_000  # zero/config.py reduce_bucket_size and allgather_bucket_size, elements
PREFETCH = 50_000_000  # stage3_prefetch_bucket_size
AUTO_PREFETCH = 0.9  # of hidden x hidden: what transformers integrations/deepspeed.py trainer_config_finalize writes for "auto"
PERSISTENCE = 100_000  # stage3_param_persistence_threshold
MAX_LIVE = 1_000_000_000  # stage3_max_live_parameters
REUSE = 1_000_000_000  # stage3_max_reuse_distance


# whose stage 3 configuration says "auto", which transformers fills from the hidden size (integrations/deepspeed.py trainer_config_finalize)
AUTO = frozenset({"ms-swift", "llama-factory", "axolotl"})
# ... and whose stages 1 and 2 name the bucket: ms-swift config/zero1.json, zero2.json 2e8; LLaMA-Factory examples/deepspeed/ds_z2_config.json 5e8 and
# axolotl deepspeed_configs/zero1.json, zero2.json (which name none) are DeepSpeed's own default
SHIPPED_BUCKET = {"ms-swift": 200_000_000}
ALONE_SINCE = (3, 3)
# ColossalAI's LowLevelZeroOptimizer divides each tensor by itself and widens its gradient by itself (zero/low_level/low_level_optim.py step); its bucket is
# of 12 MiB elements (booster/plugin/low_level_zero_plugin.py reduce_bucket_size_in_m)
APART = frozenset({"colossalchat"})
LAZY_SINCE = (0, 18, 3)  # stage_1_and_2.py setup_buckets: from the first gradient's hook; 0.18.2 in backward_prologue
BUCKET_APART = 12 * 1024**2


def setting(ctx: Context, name: str, default: int, auto: float) -> int:
    """A size in elements: as written, else what the framework's own configuration says or makes of "auto" (stage 3), else DeepSpeed's default."""
    value: int | None = getattr(ctx.job.parallel, name)
    fact = ctx.run.facts.get(f"parallel.{name}")
    if value is not None and (fact is None or fact.kind in ("stated", "read")):
        return value
    if ctx.framework in AUTO and ctx.strategy == "zero3":
        return round(auto)
    if name == "bucket_elements" and ctx.framework in SHIPPED_BUCKET:
        return SHIPPED_BUCKET[ctx.framework]
    if name == "bucket_elements" and ctx.framework in APART:
        return BUCKET_APART
    return default if value is None else value


def overlaps(job: Job) -> bool:
    """Whether the framework's own configuration switches overlap_comm on: a second bucket is filled while the first is reduced.

    ms-swift's did until 3.3 (config/zero2.json, March 2025).
    """
    if job.framework.name == "ms-swift":
        found = parse_version((job.framework.versions or {}).get("ms-swift", ""))
        return found is not None and found < ALONE_SINCE
    return job.framework.name in AUTO


def communication(ctx: Context) -> Iterator[Holding]:
    """Buckets of the reduction, and for stage 3 what is gathered."""
    c, each, hidden = ctx.counts, ctx.gradient, ctx.arch.hidden
    bucket = setting(ctx, "bucket_elements", BUCKET, hidden * hidden) if c.learned else 0  # allocated in full, whatever there is to reduce
    if bucket:  # also on a single rank: nothing asks for the size of the group
        copies = 2 if ctx.strategy != "zero3" and overlaps(ctx.job) else 1
        width = ctx.reduce if ctx.strategy == "zero3" else each  # stage 3's is in the dtype of the communication (stage3.py ipg_buckets)
        source = "stage3.py __ipg_bucket_flat_buffer" if ctx.strategy == "zero3" else "stage_1_and_2.py ipg_buffer: a second one with overlap_comm"
        for name, size, alive in _alive(ctx, copies * bucket * width):
            yield Holding(
                "communication", name, size, alive, "buckets x bucket_elements x bytes_each",
                {"buckets": copies, "bucket_elements": bucket, "bytes_each": width}, f"deepspeed {source}", layout="bucket",
            )  # fmt: skip
    if bucket and ctx.strategy == "zero2" and ctx.shard > 1 and ctx.framework not in APART:
        yield _reduced(ctx, bucket)
    if bucket and ctx.strategy == "zero3":
        yield from _joined(ctx, bucket)
    # one rank's part is the whole, which it uses as it lies (partition_parameters.py NoGatherCoalescedHandle), unless it lies on the host
    if ctx.strategy == "zero3" and (ctx.shard > 1 or ctx.parameters_away):
        yield from _gathered(ctx)


def _alive(ctx: Context, size: int) -> Iterator[tuple[str, int, frozenset[str]]]:
    """The reduce bucket of so many bytes by when it counts: stage 3 allocates it once, the others in each backward pass.

    They do so at its start, since 0.18.3 with the first gradient (``process_gradients`` calls ``setup_buckets``), when the loss's wide copies are
    gone. Stage 1 lets go of it where it reduces, after the last micro batch: the forward passes before that meet it.
    """
    name = "reduce bucket"
    if ctx.strategy == "zero3":
        yield name, size, ctx.trains
    elif ctx.strategy == "zero1" and ctx.accumulation > 1 and ctx.framework not in APART:
        yield name, size, ctx.trains - {at.STEP}
    elif ctx.framework in APART or not ctx.at_least("deepspeed", *LAZY_SINCE):
        yield name, size, ctx.trains & (at.BACKWARD | {at.LOSS_BACKWARD})
    else:
        yield name, size, ctx.trains & at.BACKWARD
        if (head := _head(ctx)) is not None:
            early, gone = head.total * ctx.gradient, logits.gone_before_head(ctx)
            yield f"{name} beyond the loss's copies", max(0, size + early - gone) - max(0, early - gone), ctx.trains & {at.LOSS_BACKWARD}


def _reduced(ctx: Context, bucket: int) -> Holding:
    """Stage 2 joins the slices of a bucket that go to different ranks once more; slices of one rank go as they lie.

    A bucket that is larger than all gradients is reduced when the last has come; smaller ones straddle the ranks' boundaries on the way.
    """
    learned = ctx.counts.learned
    when = {at.BACKWARD_ROOT} if learned <= bucket else {at.BACKWARD_FIRST}
    return Holding(
        "communication", "gradients of a bucket, joined to be reduced", min(bucket, learned) * ctx.gradient, ctx.trains & when, "elements x bytes_each",
        {"elements": min(bucket, learned), "bytes_each": ctx.gradient}, "deepspeed stage_1_and_2.py average_tensor, allreduce_bucket (0.12.6 to 0.19.8)",
        layout="bucket",
    )  # fmt: skip


def _joined(ctx: Context, bucket: int) -> Iterator[Holding]:
    """Stage 3 joins the gradients of a bucket once more, ordered by rank, before they are reduced and scattered; one tensor alone goes as it is.

    A tensor larger than the bucket is reduced alone.
    """
    block = max((u.trained + u.adapters for u in ctx.counts.blocks), default=0)
    largest = max((i.elements for u in ctx.counts.blocks for i in u.items if i.fate in ("trained", "adapter")), default=0)
    if largest > bucket:
        return
    for elements, when in ((block, {at.BACKWARD_LAST}), (ctx.counts.learned, {at.BACKWARD_FIRST, at.BACKWARD_ROOT})):
        size = min(bucket, elements)
        yield Holding(
            "communication", "gradients of a bucket, joined by rank", size * ctx.reduce, ctx.trains & when, "elements x bytes_each",
            {"elements": size, "bytes_each": ctx.reduce}, "deepspeed runtime/comm/coalesced_collectives.py reduce_scatter_coalesced (0.18.3)", layout="bucket",
        )  # fmt: skip


def persistent(ctx: Context) -> int:
    """Elements of tensors below the persistence threshold: whole on every rank."""
    limit = setting(ctx, "persistence_elements", PERSISTENCE, 10 * ctx.arch.hidden)
    return sum(unit.layers * item.total for unit in ctx.counts.units for item in unit.items if item.elements < limit)


def _gathered(ctx: Context) -> Iterator[Holding]:
    c, each, hidden = ctx.counts, ctx.compute, ctx.arch.hidden
    kept = persistent(ctx)
    moments = ctx.trains
    source = "trained weights" if c.trained else "frozen weights"
    yield Holding(
        "communication", "persistent small parameters", kept * each, moments, "elements x bytes_each", {"elements": kept, "bytes_each": each},
        "deepspeed partition_parameters.py: tensors under stage3_param_persistence_threshold are never divided", layout="gathered", copy_of=source,
        need="needed",
    )  # fmt: skip
    block = max((u for u in c.blocks), key=lambda u: u.elements, default=c.outer)
    whole = sum(u.layers * u.elements for u in c.units)
    prefetch = min(setting(ctx, "prefetch_elements", PREFETCH, AUTO_PREFETCH * hidden * hidden), whole)
    live = min(setting(ctx, "max_live_elements", MAX_LIVE, MAX_LIVE), whole)
    largest = max((i.elements for i in block.items), default=0)
    saved = kept_by_autograd(ctx)
    if saved:
        yield Holding(
            "communication", "gathered weights that autograd keeps", saved * each, moments & {at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST},
            "elements x bytes_each", {"elements": saved, "bytes_each": each},
            "deepspeed pull request 8189 (0.19.4): without zero.Init the linear function of torch saves a view of the weight, whose memory stays",
            copy_of=source, layout="gathered", need="avoidable",
        )  # fmt: skip
    # A parameter is released after use unless it is used again within the reuse distance: the blocks nearest the loss are, the head always, and with it
    # the last block, which is fetched ahead for the backward pass while the head runs (coordinator fetch_sub_module, 0.19.8).
    head = _table(ctx, "head") or (_table(ctx, "embedding") if ctx.arch.tied and ctx.has_head else 0)
    near = max(0, min(live, max(REUSE // 2, head + block.elements if head else 0), whole - kept) - saved)
    values = {"elements": near, "bytes_each": each}
    yield Holding(
        "communication", "gathered parameters kept for reuse", max(near, largest) * each, moments & {at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST},
        "elements x bytes_each", values, "deepspeed partitioned_param_coordinator.py: released beyond stage3_max_reuse_distance, at most max_live_parameters",
        layout="gathered", copy_of=source, need="replaceable",
    )  # fmt: skip
    running = min(live, max(largest, min(block.elements, prefetch + largest)))
    yield Holding(
        "communication", "gathered parameters of the running block", running * each, moments & {at.FORWARD, at.BACKWARD_FIRST},
        "elements x bytes_each", {"elements": running, "bytes_each": each}, "deepspeed partitioned_param_coordinator.py fetch_sub_module", layout="gathered",
        copy_of=source, need="needed",
    )  # fmt: skip
    table = max((i.elements for i in c.outer.items if i.elements), default=0)
    yield Holding(
        "communication", "all-gather output beside the parameters cut from it", max(prefetch, largest) * each, moments & {at.FORWARD, at.BACKWARD_LAST,
        at.BACKWARD_FIRST},
        "elements x bytes_each", {"elements": max(prefetch, largest), "bytes_each": each}, "deepspeed partition_parameters.py AllGatherCoalescedHandle.wait",
        layout="gathered",
    )  # fmt: skip
    yield Holding(
        "communication", "gathered embedding or head", table * each, moments & {at.BACKWARD_ROOT}, "elements x bytes_each",
        {"elements": table, "bytes_each": each}, "deepspeed partitioned_param_coordinator.py fetch_sub_module", layout="gathered", copy_of=source,
        need="needed",
    )  # fmt: skip


def gradients(ctx: Context) -> Iterator[Holding]:
    """Stage 1 keeps whole gradients, stages 2 and 3 a partition; the step widens it to fp32."""
    c, each, moments = ctx.counts, ctx.gradient, ctx.trains
    # DeepSpeed keeps gradients where the optimizer steps; LowLevelZeroOptimizer copies each there in its step and keeps the partition on the card till then
    host = (ctx.gradients_away or ctx.optimizer_away) and ctx.framework not in APART
    share = learned_share(ctx, ctx.shard)
    values = {"elements": c.learned, "bytes_each": each, "ranks": ctx.shard}
    early = moments if ctx.accumulation > 1 else moments & {at.BACKWARD_FIRST, at.BACKWARD_ROOT, at.STEP}
    if ctx.strategy == "zero1":
        yield Holding(
            "gradients",
            "whole gradients",
            c.learned * each,
            early - {at.STEP},
            "elements x bytes_each",
            values,
            "deepspeed stage_1_and_2.py: stage 1 reduces at the end of accumulation",
        )
        if not host:
            yield Holding(
                "gradients", "gradient partition", share * each, moments & {at.STEP} if not freed_before_update(ctx, share) else frozenset(),
                "elements x bytes_each / ranks", values,
                "deepspeed stage_1_and_2.py independent_gradient_partition_epilogue: averaged_gradients alone are left (0.12.6 to 0.19.8)", layout="sharded",
            )  # fmt: skip
    elif host:
        yield from _on_host(ctx, share, values)
    elif ctx.strategy == "zero2":
        yield Holding(
            "gradients",
            "gradient partition",
            share * each,
            early - {at.STEP} if freed_before_update(ctx, share) else early,
            "elements x bytes_each / ranks",
            values,
            "deepspeed stage_1_and_2.py averaged_gradients",
            layout="sharded",
        )
    else:
        yield Holding(
            "gradients", "gradient partition", share * each, moments, "elements x bytes_each / ranks", values,
            "deepspeed stage3.py: one flat partition, allocated once", layout="sharded",
        )  # fmt: skip
    yield from _arriving(ctx, each)
    if c.learned and not host and not ctx.optimizer_away:
        yield from (h for h in joined(ctx, share) if ctx.framework not in APART or h.name not in (ONE_TENSOR, NORM))


def _on_host(ctx: Context, share: int, values: dict[str, int]) -> Iterator[Holding]:
    """Gradients where a CPU optimizer steps, in pinned memory from the engine's start on: stage 2 in fp32, stage 3 as they are and widened by sub-group."""
    alive = ctx.moments - {at.LOAD_MATERIALISE}
    if ctx.strategy == "zero2":
        yield Holding(
            "gradients", "gradient partition on the host", 4 * share, alive, "elements x 4 / ranks", values,
            "deepspeed stage_1_and_2.py: the fp32 partition's .grad, pinned", dtype="fp32", layout="sharded", device="host",
        )  # fmt: skip
        return
    yield Holding(
        "gradients", "gradient partition on the host", ctx.gradient * share, alive, "elements x bytes_each / ranks", values,
        "deepspeed stage3.py grad_partitions_flat_buffer, pinned", layout="sharded", device="host",
    )  # fmt: skip
    part = min(share, SUB_GROUP)
    yield Holding(
        "gradients", "fp32 gradients of a sub-group on the host", 4 * part, ctx.moments & {at.STEP}, "elements x 4", {"elements": part},
        "deepspeed stage3.py step: a sub-group's gradients are widened for the CPU optimizer", dtype="fp32", device="host",
    )  # fmt: skip


def _arriving(ctx: Context, each: int) -> Iterator[Holding]:
    """Gradients that autograd has made and the bucket not yet taken."""
    c = ctx.counts
    for item, when, gone in ((_head(ctx), at.LOSS_BACKWARD, logits.gone_before_head(ctx)), (_largest(ctx, "embedding"), at.BACKWARD_ROOT, 0)):
        if item is not None:
            yield Holding(
                "gradients", f"gradient of {item.name} before it is reduced", max(0, item.total * each - gone), ctx.trains & {when},
                "max(0, elements x bytes_each - copies_gone)", {"elements": item.total, "bytes_each": each, "copies_gone": gone},
                "torch autograd: the head's is made when the loss's wide copies are gone", copy_of=None,
            )  # fmt: skip
    largest = max((i.elements for u in c.blocks for i in u.items if i.fate in ("trained", "adapter")), default=0)
    yield Holding(
        "gradients", "gradient before it is reduced", largest * each, ctx.trains & {at.BACKWARD_LAST, at.BACKWARD_FIRST}, "largest_tensor x bytes_each",
        {"largest_tensor": largest, "bytes_each": each}, "torch autograd",
    )  # fmt: skip


def _table(ctx: Context, role: str) -> int:
    """Elements of the largest outer tensor of a role, trained or not."""
    return max((i.elements for i in ctx.counts.outer.items if i.role == role), default=0)


def _head(ctx: Context) -> Item | None:
    return _largest(ctx, "head") or (_largest(ctx, "embedding") if ctx.arch.tied and ctx.has_head else None)


def _largest(ctx: Context, role: str) -> Item | None:
    return max((i for i in ctx.counts.outer.items if i.role == role and i.fate == "trained"), key=lambda i: i.total, default=None)


def share_of(ctx: Context, elements: int) -> int:
    """A rank's share of elements, padded."""
    return split(elements, ctx.shard)
