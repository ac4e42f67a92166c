"""Evaluation: a forward pass at its own batch, and predictions that gather."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

# bytes a token and vocabulary entry in a forward pass without graph: logits, their fp32 copy and its log-softmax
LOSS = {"full-fp32": (0, 8), "full": (1, 0), "fused": (0, 4), "vocab-parallel": (0, 8), "chunked": (0, 0), "fused-linear": (0, 0)}
CHUNK_TOKENS = 4096


def holdings(ctx: Context) -> Iterator[Holding]:
    """Logits of the evaluation batch, and what is kept of them."""
    section = ctx.job.eval
    if section is None or not ctx.has_head:
        return
    rows = section.micro_batch or ctx.micro_batch
    tokens = rows * ctx.seq_len
    vocab = -(-ctx.arch.vocab // ctx.tensor)
    form = section.loss or ctx.job.activations.loss or "full-fp32"
    copies, extra = LOSS.get(form, (0, 8))
    whole = section.keeps in (None, "logits") or form not in ("chunked", "fused-linear")
    seen = tokens if whole else min(tokens, CHUNK_TOKENS)
    each = ctx.compute * (1 + copies) + extra
    values = {"tokens": seen, "vocabulary": vocab, "bytes_each": each}
    yield Holding(
        "logits", "logits and loss of the evaluation batch", seen * vocab * each, ctx.moments & {at.EVAL_FORWARD}, "tokens x vocabulary x bytes_each", values,
        "transformers trainer.prediction_step: logits in the compute dtype, the loss's fp32 copy and log-softmax",
    )  # fmt: skip
    block = max((b.mlp_width or (b.experts.width * b.experts.chosen if b.experts else 0) for b, _ in ctx.blocks), default=0)
    running = tokens * ctx.compute * (4 * ctx.arch.hidden + 3 * -(-block // ctx.tensor))
    yield Holding(
        "activations", "running block of the evaluation", running, ctx.moments & {at.EVAL_FORWARD}, "tokens x bytes_each x (4 x hidden + 3 x mlp_width)",
        {"tokens": tokens, "bytes_each": ctx.compute, "hidden": ctx.arch.hidden, "mlp_width": block},
        "no graph: input, residual, normalised input, output; gate, up, product",
        error="a bound on one block's temporaries",
    )  # fmt: skip
    if section.accumulate == "device" and section.keeps in (None, "logits", "argmax"):
        kept = tokens * (8 if section.keeps == "argmax" else ctx.arch.vocab * 4)
        world = ctx.shard * ctx.replicate
        yield Holding(
            "logits", "predictions gathered from all ranks, one batch", kept * world, ctx.moments & {at.EVAL_GATHER}, "tokens x kept_bytes x ranks",
            {"tokens": tokens, "kept_bytes": kept // max(1, tokens), "ranks": world},
            "transformers trainer.evaluation_loop: eval_accumulation_steps None keeps every batch on the device (accelerate returns fp32)",
            error="grows by this much with every evaluation batch", need="avoidable",
        )  # fmt: skip
