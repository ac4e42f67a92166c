"""Resident weights: trained, frozen, quantised, adapters, masters, and the casts that autocast keeps."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import layouts
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import learned_share, quantised_ranks, split, state_ranks, weight_ranks
from advisor.ledger import DeviceName, Holding


def holdings(ctx: Context) -> Iterator[Holding]:
    """What the model itself holds on this rank."""
    c, job = ctx.counts, ctx.job
    ranks = weight_ranks(ctx)
    alive = ctx.moments - {at.LOAD_MATERIALISE}
    if "weights" in ctx.parked:
        alive -= {at.GENERATE}
    dtype = job.precision.weights or "bf16"
    if ctx.parameters_away:
        yield from _offloaded(ctx, ranks)
        return
    if c.trained:
        yield Holding(
            "weights", "trained weights", ctx.weight * _share(ctx, ranks, "trained"), alive, "trained_elements x bytes_each / ranks",
            {"trained_elements": c.trained, "bytes_each": ctx.weight, "ranks": ranks}, "element count of the config, torch dtype size", dtype=dtype,
            layout="sharded" if ranks > 1 else "dense",
        )  # fmt: skip
    if c.frozen:
        each = 4 if job.method.kbit_preparation and ctx.base in ("nf4", "fp4", "int8") else ctx.weight
        yield Holding(
            "weights", "frozen weights", each * _share(ctx, ranks, "frozen"), alive, "frozen_elements x bytes_each / ranks",
            {"frozen_elements": c.frozen, "bytes_each": each, "ranks": ranks},
            "peft prepare_model_for_kbit_training widens what is not quantised to fp32" if each != ctx.weight else "element count of the config",
            dtype="fp32" if each == 4 else dtype, layout="sharded" if ranks > 1 else "dense",
        )  # fmt: skip
    if c.quantised:
        payload, constants = quantised_bytes(ctx)
        yield Holding(
            "weights", f"base in {ctx.base}", split(payload, quantised_ranks(ctx)) + constants, alive, "payload_bytes / ranks + constants_bytes",
            {"elements": c.quantised, "payload_bytes": payload, "constants_bytes": constants, "ranks": quantised_ranks(ctx)},
            "torchao nf4_tensor.py fsdp_pre_all_gather: data, scalers and their factors are all divided" if torchao(ctx)
            else "layouts of bitsandbytes, GPTQ, AWQ, MXFP4; block constants stay whole on every rank", dtype=ctx.base, layout=ctx.base,
        )  # fmt: skip
    if c.adapters:
        yield Holding(
            "weights", "adapters", ctx.adapter * _share(ctx, ranks, "adapters"), alive, "rank x (inputs + outputs) x bytes_each / ranks",
            {"elements": c.adapters, "rank": job.method.rank, "bytes_each": ctx.adapter, "ranks": ranks},
            "peft LoraLayer: A [rank, in], B [out, rank]", dtype=job.method.adapter_dtype or "fp32",
        )  # fmt: skip
    if c.copied:
        yield Holding(
            "weights", "originals under modules_to_save", ctx.weight * split(c.copied, ranks), alive, "elements x bytes_each / ranks",
            {"elements": c.copied, "bytes_each": ctx.weight, "ranks": ranks}, "peft ModulesToSaveWrapper deep-copies the module and keeps the original",
            dtype=dtype, copy_of="trained weights", need="avoidable",
        )  # fmt: skip
    yield from _casts(ctx)
    yield from _fp8(ctx)
    if ctx.masters and c.learned:
        over = state_ranks(ctx)
        yield Holding(
            "weights", "fp32 masters" if ctx.master == 4 else "16-bit masters", ctx.master * learned_share(ctx, over), alive - {at.LOAD_READY} -
            ({at.GENERATE, at.SCORE, at.HANDOVER} if "optimizer" in ctx.parked else frozenset()), "trained_elements x bytes_each / ranks",
            {"trained_elements": c.learned, "bytes_each": ctx.master, "ranks": over},
            "DeepSpeed bf16/fp16 optimizers and Megatron's mixed-precision optimizer keep an fp32 copy; DeepSpeed's bf16_master_weights_and_grads a bf16 one",
            dtype="fp32" if ctx.master == 4 else job.optimizer.states, copy_of="trained weights", need="needed",
            layout="sharded" if over > 1 else "dense", device="host" if ctx.optimizer_away else "gpu",
        )  # fmt: skip


def resident(ctx: Context) -> int:
    """Bytes of the model itself (base and adapters, without masters) on this rank."""
    c, ranks = ctx.counts, weight_ranks(ctx)
    each = 4 if ctx.job.method.kbit_preparation and ctx.base in ("nf4", "fp4", "int8") else ctx.weight
    payload, constants = quantised_bytes(ctx) if c.quantised else (0, 0)
    plain = ctx.weight * _share(ctx, ranks, "trained") + each * _share(ctx, ranks, "frozen") + ctx.adapter * _share(ctx, ranks, "adapters")
    return plain + split(payload, quantised_ranks(ctx)) + constants


def _casts(ctx: Context) -> Iterator[Holding]:
    """What autocast keeps: a copy of every fp32 matrix in the compute dtype.

    Forward: the cache holds the casts of trained leaves until the outermost autocast context ends, the loss included (it is computed in
    the model's forward). Backward: autograd keeps the casts that the products saved; under checkpointing only those of the recomputed block.
    """
    c = ctx.counts
    if not ctx.autocast or ctx.compute >= 4:
        return
    block_trained = block_all = trained = every = 0
    for unit in (*c.blocks, *c.vision):
        own_trained = own_all = 0
        for i in unit.items:
            if not i.matrix or i.role in ("norm", "embedding", "position"):
                continue
            wide = ctx.adapter == 4 if i.fate == "adapter" else ctx.weight == 4
            if not wide or i.fate == "quantised":
                continue
            own_all += i.total
            own_trained += i.total if i.fate in ("trained", "adapter") else 0
        block_trained, block_all = max(block_trained, own_trained), max(block_all, own_all)
        trained += own_trained * unit.layers
        every += own_all * unit.layers
    head = sum(i.total for i in c.outer.items if i.role == "head") or (
        ctx.arch.embedding_parameters if ctx.arch.tied and ctx.has_head and ctx.arch.classes is None else 0
    )
    wide_head = head if ctx.weight == 4 or (ctx.job.method.kbit_preparation and ctx.base in ("nf4", "fp4", "int8")) else 0
    kept = every if ctx.checkpointing == "none" else trained
    source = "torch aten/src/ATen/autocast_mode.cpp cached_cast; saved tensors of linear"
    formula = "elements x bytes_each"
    dtype = ctx.job.precision.compute

    def cast(name: str, elements: int, moments: frozenset[str]) -> Holding:
        return Holding(
            "weights", name, elements * ctx.compute, ctx.trains & moments, formula, {"elements": elements, "bytes_each": ctx.compute}, source, dtype=dtype,
            copy_of="trained weights" if c.trained else "frozen weights", need="needed",
        )  # fmt: skip

    if kept:
        yield cast("casts kept by autocast", kept, frozenset({at.FORWARD, at.LOSS_FORWARD}))
    if ctx.checkpointing == "none" and every:
        yield cast("casts saved for backward", every, frozenset({at.LOSS_BACKWARD, at.BACKWARD_LAST}))
    if wide_head:
        yield cast("cast of the head", wide_head, frozenset({at.LOSS_FORWARD, at.LOSS_BACKWARD}))
    running = block_all
    if running and ctx.checkpointing != "none":
        yield cast("casts of the running block", running, frozenset({at.BACKWARD_LAST, at.BACKWARD_FIRST}))


def _fp8(ctx: Context) -> Iterator[Holding]:
    """TransformerEngine's fp8 copies of linear weights: by row for the forward product, by column for the input's gradient.

    They are kept over the micro batches of a step (is_first_microbatch), and from forward to backward in any case. Per-tensor scaling needs no
    second copy where the card multiplies untransposed fp8 (compute capability 10). torchao casts on the fly and keeps none.
    """
    job = ctx.job
    if job.precision.compute not in ("fp8", "mxfp8", "nvfp4") or not (ctx.is_megatron or ctx.source == "megatron"):
        return
    matrices = sum(i.total * u.layers for u in ctx.counts.blocks for i in u.items if i.matrix and i.role in ("attention", "mlp", "expert", "shared-expert"))
    block_scaled = job.precision.compute != "fp8" or job.precision.fp8_recipe in ("blockwise", "mxfp8")
    copies = 2 if block_scaled or ctx.sm is None or ctx.sm < 100 else 1
    yield Holding(
        "weights", "fp8 copies of linear weights", copies * matrices, ctx.trains, "copies x matrix_elements x 1",
        {"copies": copies, "matrix_elements": matrices},
        "TransformerEngine pytorch/module/linear.py weight workspaces, pytorch/quantized_tensor.py rowwise and columnwise data", dtype="fp8", layout="fp8",
        copy_of="trained weights", need="replaceable",
    )  # fmt: skip


def torchao(ctx: Context) -> bool:
    """The base is of torchao's NF4Tensor, whose constants FSDP2 divides as it divides its data: torchtune's."""
    return ctx.source == "torchtune" and ctx.base == "nf4"


def quantised_bytes(ctx: Context) -> tuple[int, int]:
    """Payload of the quantised base before it is divided, and constants on this rank."""
    payload = constants = 0
    method = ctx.job.method
    double, group = method.double_quant is not False, method.group_size or layouts.DEFAULT_GROUP
    for unit in ctx.counts.units:
        for item in unit.items:
            if item.fate == "quantised":
                times = item.times * unit.layers
                payload += times * layouts.packed(ctx.base, item.elements)
                constants += times * layouts.constants(ctx.base, item.rows, item.columns, double_quant=double, group=group)
    return payload, split(constants, quantised_ranks(ctx)) if torchao(ctx) else constants


def _share(ctx: Context, ranks: int, fate: str) -> int:
    if ranks == 1:
        return int(getattr(ctx.counts, fate))
    return sum(unit.layers * split(getattr(unit, fate), ranks) for unit in ctx.counts.units)


def _offloaded(ctx: Context, ranks: int) -> Iterator[Holding]:
    """Parameters at home on the host: the card holds what communication gathers, and constants of quantised layouts."""
    c = ctx.counts
    payload, constants = quantised_bytes(ctx) if c.quantised else (0, 0)
    size = ctx.weight * split(c.trained + c.frozen, ranks) + ctx.adapter * split(c.adapters, ranks) + split(payload, quantised_ranks(ctx))
    device: DeviceName = "nvme" if ctx.job.offload.parameters == "nvme" else "host"
    yield Holding(
        "weights", "weights on the host", size, ctx.moments, "elements x bytes_each / ranks",
        {"elements": c.base, "bytes_each": ctx.weight, "ranks": ranks}, "offload.parameters", dtype=ctx.job.precision.weights, device=device,
    )  # fmt: skip
    if constants:
        yield Holding(
            "weights", f"constants of the base in {ctx.base}", constants, ctx.moments - {at.LOAD_MATERIALISE}, "constants_bytes",
            {"constants_bytes": constants}, "bitsandbytes QuantState: not a parameter, so not moved with them", layout=ctx.base,
        )  # fmt: skip
