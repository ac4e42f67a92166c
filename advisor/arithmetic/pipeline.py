"""Pipelining: activations of the micro batches that a stage has run forward and not yet backward.

Source: Megatron-LM core/pipeline_parallel/schedules.py (forward_backward_pipelining_without_interleaving and with_interleaving): a
stage runs ``stages - rank - 1`` warm-up micro batches; interleaved ``2 (stages - rank - 1) + (chunks - 1) x stages`` chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.arithmetic import moments as at
from advisor.arithmetic import torch_pipeline
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

SAVED = frozenset({"activations", "attention", "dequantised"})


def in_flight(ctx: Context) -> tuple[int, int]:
    """Chunk forward passes alive on this stage, and chunks a stage has: their ratio is micro batches of the whole stage."""
    p = ctx.job.parallel
    if ctx.pipeline == 1:
        return 1, 1
    micro = p.microbatches or ctx.accumulation
    chunks = p.virtual_stages or 1
    rank = _rank(ctx)
    behind = ctx.pipeline - rank - 1
    if chunks == 1:
        return min(micro, behind + 1), 1
    return min(micro * chunks, 2 * behind + (chunks - 1) * ctx.pipeline + 1), chunks


def _rank(ctx: Context) -> int:
    rank = ctx.job.parallel.pipeline_rank
    if isinstance(rank, int):
        return min(rank, ctx.pipeline - 1)
    return {"first": 0, "middle": 1, "last": ctx.pipeline - 1}.get(ctx.stage, 0)


def waiting(ctx: Context, held: Sequence[Holding]) -> list[Holding]:
    """What the other micro batches in flight hold: as much as one keeps between its forward and its backward pass."""
    if ctx.torch_pipeline:
        return list(torch_pipeline.holdings(ctx, held))
    alive, chunks = in_flight(ctx)
    if alive <= 1:
        return []
    one = sum(h.bytes for h in held if h.part in SAVED and at.LOSS_FORWARD in h.moments and h.device == "gpu")
    extra = one * alive // chunks - one
    if extra <= 0:
        return []
    more = Holding(
        "activations", "activations of other micro batches in flight", extra, ctx.trains - {at.STEP}, "saved_bytes x chunks_alive / chunks - saved_bytes",
        {"saved_bytes": one, "chunks_alive": alive, "chunks": chunks}, "Megatron-LM core/pipeline_parallel/schedules.py, warm-up micro batches",
    )  # fmt: skip
    return [more]
