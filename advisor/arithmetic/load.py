"""How weights come in: what the device and the host hold before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.dtypes import bytes_of
from advisor.arithmetic.sharding import weight_ranks
from advisor.arithmetic.weights import resident, torchao
from advisor.ledger import Holding

NF4_LEVELS, NF4_CHUNK, CHUNKED_SINCE = 16, 1024**2, (0, 2)
FILE_BYTES = 5 * 10**9  # max_shard_size of transformers' save_pretrained before version 5
FACTORY = "llamafactory model/adapter.py init_adapter: unless pure_bf16, ZeRO-3 or FSDP; deepspeed runtime/engine.py _configure_distributed_model narrows them"
SOURCE = "transformers modeling_utils.from_pretrained, accelerate prepare, torch FSDP sync_module_states"


def holdings(ctx: Context) -> Iterator[Holding]:
    """The state while loading, and what every rank's process keeps in host memory for it."""
    job, c = ctx.job, ctx.counts
    section = job.load
    each = bytes_of(section.dtype if section is not None and section.dtype else job.precision.weights)
    ranks = weight_ranks(ctx)
    whole = c.base * each
    how = section.materialise if section is not None and section.materialise else "every-rank"
    moved = bool(section and section.move_before_sharding) or ctx.run.ineffective("parallel.strategy", "load")
    values = {"elements": c.base, "bytes_each": each}
    now = frozenset({at.LOAD_MATERIALISE})
    if ranks > 1 and moved:
        yield Holding(
            "weights", "whole model on the device before it is divided", whole, now | {at.LOAD_READY}, "elements x bytes_each", values, SOURCE,
            copy_of="trained weights" if c.trained else "frozen weights", need="avoidable",
        )  # fmt: skip
    elif ranks == 1 and not ctx.parameters_away:
        yield Holding("weights", "weights as they arrive", resident(ctx), now, "resident bytes", {"bytes": resident(ctx)}, SOURCE)
        if (wide := _widened(ctx)) is not None:
            yield wide
    if c.quantised and (section is None or section.quantize_on in (None, "device")):
        matrix = max((i.elements for u in c.units for i in u.items if i.fate == "quantised"), default=0)
        yield Holding(
            "weights", "matrix being quantised", matrix * each, now, "largest_matrix x bytes_each", {"largest_matrix": matrix, "bytes_each": each},
            "bitsandbytes Params4bit._quantize: the 16-bit matrix is moved to the device and quantised there",
        )  # fmt: skip
        if torchao(ctx):
            at_once = min(matrix, NF4_CHUNK) if ctx.at_least("torchao", *CHUNKED_SINCE) else matrix
            values = {"elements": at_once, "levels": NF4_LEVELS, "copies": 2, "bytes_each": 2}
            yield Holding(
                "weights", "distances to all levels", at_once * NF4_LEVELS * 2 * 2, now, "elements x levels x copies x bytes_each", values,
                "torchao dtypes/nf4tensor.py quantize_tensor_nearest: difference to each level, its absolute value; a million elements at once since 0.2",
            )  # fmt: skip
    if ranks > 1 and how != "meta":
        processes = min(ctx.job.hardware.gpus_per_node or 1, ctx.run.world)
        copies = processes if how == "every-rank" else 1
        # ZeRO-3 fills partitioned parameters file by file (transformers integrations/deepspeed.py _load_state_dict_into_zero3_model)
        one = min(whole, FILE_BYTES) if ctx.strategy == "zero3" and not moved else whole
        yield Holding(
            "weights", "checkpoint in host memory while loading", one * copies, now, "elements x bytes_each x processes",
            {**values, "processes": copies}, "every process of a node reads the checkpoint unless only rank 0 does", device="host",
            copy_of="trained weights", need="avoidable" if copies > 1 else "needed",
        )  # fmt: skip


def _widened(ctx: Context) -> Holding | None:
    """What LLaMA-Factory's cast of the trained weights to fp32 takes on the device until DeepSpeed's engine casts them back."""
    if ctx.framework != "llama-factory" or ctx.strategy not in ("zero1", "zero2") or ctx.job.precision.mixed != "deepspeed" or ctx.weight >= 4:
        return None
    more, trained = 4 - ctx.weight, ctx.counts.trained
    return Holding(
        "weights", "trained weights as fp32 until the engine narrows them", more * trained, frozenset({at.LOAD_MATERIALISE}), "elements x (4 - bytes_each)",
        {"elements": trained, "bytes_each": ctx.weight}, FACTORY, dtype="fp32", need="avoidable",
    )  # fmt: skip
