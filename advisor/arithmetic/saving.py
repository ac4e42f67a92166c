"""Saving, resuming and merging: state that is whole, twice or wide for a moment."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.sharding import learned_share, state_ranks, weight_ranks
from advisor.arithmetic.weights import resident
from advisor.ledger import Holding


def holdings(ctx: Context) -> Iterator[Holding]:
    """Gathered state at a save, the checkpoint beside live state at a resume, the widened base at a merge."""
    yield from _save(ctx)
    yield from _resume(ctx)
    yield from _merge(ctx)


def _save(ctx: Context) -> Iterator[Holding]:
    section, c = ctx.job.save, ctx.counts
    if section is None or section.format in ("sharded", "adapters"):
        return
    ranks = weight_ranks(ctx)
    whole = ctx.weight * (c.trained + c.frozen) + ctx.adapter * c.adapters
    values = {"elements": c.base, "bytes_each": ctx.weight}
    if ranks > 1 and section.gather != "none":
        if section.to_host is False:
            yield Holding(
                "weights", "whole model gathered on the device", whole, ctx.moments & {at.SAVE}, "elements x bytes_each", values,
                "torch FSDP FULL_STATE_DICT without offload_to_cpu; DeepSpeed stage3_gather_16bit_weights_on_model_save", copy_of="trained weights",
                need="avoidable",
            )  # fmt: skip
        else:
            unit = max((u.elements for u in (*c.blocks, c.outer)), default=0)
            yield Holding(
                "communication", "unit gathered on its way to the host", unit * ctx.weight, ctx.moments & {at.SAVE}, "unit_elements x bytes_each",
                {"unit_elements": unit, "bytes_each": ctx.weight}, "torch/distributed/fsdp/_state_dict_utils.py: one unit at a time",
                copy_of="trained weights", need="needed",
            )  # fmt: skip
    copies = min(ctx.job.hardware.gpus_per_node or 1, ctx.run.world) if section.gather == "every-rank" else 1
    yield Holding(
        "weights", "checkpoint in host memory", whole * copies, ctx.moments & {at.SAVE}, "elements x bytes_each x processes", {**values, "processes": copies},
        "a full state dict is assembled in host memory", device="host", copy_of="trained weights", need="avoidable" if copies > 1 else "needed",
    )  # fmt: skip


def _resume(ctx: Context) -> Iterator[Holding]:
    section = ctx.job.resume
    if section is None:
        return
    states = 2 * ctx.state * learned_share(ctx, state_ranks(ctx)) + resident(ctx)
    on_device = section.map == "device"
    yield Holding(
        "optimizer", "checkpoint read beside the live state", states, ctx.moments & {at.RESUME}, "weights_bytes + state_bytes",
        {"weights_bytes": resident(ctx), "state_bytes": states - resident(ctx)},
        "torch.load(map_location): the whole file's tensors before load_state_dict copies them",
        device="gpu" if on_device else "host", copy_of="optimizer states" if on_device else None, need="avoidable" if on_device else None,
    )  # fmt: skip


def _merge(ctx: Context) -> Iterator[Holding]:
    section, c = ctx.job.save, ctx.counts
    if section is None or section.merge not in ("device", "host") or not c.adapters:
        return
    largest = max((i.elements for u in c.units for i in u.items if i.fate in ("quantised", "frozen")), default=0)
    wide = 2 * c.quantised + 4 * largest
    yield Holding(
        "weights", "base widened for the merge", wide, ctx.moments & {at.MERGE}, "quantised_elements x 2 + largest_matrix x 4",
        {"quantised_elements": c.quantised, "largest_matrix": largest}, "peft tuners/lora/bnb.py merge: dequantised, added to in fp32, stored in 16 bit",
        device="gpu" if section.merge == "device" else "host", copy_of=f"base in {ctx.base}" if c.quantised else None, need="avoidable",
    )  # fmt: skip
