"""Evaluation: a forward pass at its own batch, and predictions that gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.arithmetic import logits
from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

# bytes a token and vocabulary entry in a forward pass without graph: logits, their fp32 copy and its log-softmax
LOSS = {"full-fp32": (0, 8), "full": (1, 0), "fused": (0, 4), "vocab-parallel": (0, 8), "chunked": (0, 0), "fused-linear": (0, 0)}
CHUNK_TOKENS = 4096
NO_CACHE_SINCE = (5,)  # transformers trainer.py sets model.config.use_cache to TrainingArguments.use_cache, which is False; before, the model's own True holds
ONLY = frozenset({at.EVAL_FORWARD, at.EVAL_GATHER})
KBIT = frozenset({"nf4", "fp4", "int8"})


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
    if form == "full-fp32" and ctx.source == "huggingface" and ctx.arch.softcap_logits is None:
        each = round(logits.of(ctx, form).forward)  # the copies that its version of the loss makes are the same without a graph
    values = {"tokens": seen, "vocabulary": vocab, "bytes_each": each}
    yield Holding(
        "logits", "logits and loss of the evaluation batch", seen * vocab * each, ctx.moments & {at.EVAL_FORWARD}, "tokens x vocabulary x bytes_each", values,
        "transformers trainer.prediction_step: logits in the compute dtype, the loss's fp32 copy and log-softmax",
    )  # fmt: skip
    block = max((b.mlp_width or (b.experts.width * b.experts.chosen if b.experts else 0) for b, _ in ctx.blocks), default=0)
    element = 4 if _widened(ctx) else ctx.compute
    running = tokens * element * (4 * ctx.arch.hidden + 3 * -(-block // ctx.tensor))
    yield Holding(
        "activations", "running block of the evaluation", running, ctx.moments & {at.EVAL_FORWARD}, "tokens x bytes_each x (4 x hidden + 3 x mlp_width)",
        {"tokens": tokens, "bytes_each": element, "hidden": ctx.arch.hidden, "mlp_width": block},
        "no graph: input, residual, normalised input, output; gate, up, product",
        error="a bound on one block's temporaries",
    )  # fmt: skip
    yield from _cache(ctx, tokens)
    if section.accumulate == "device" and section.keeps in (None, "logits", "argmax"):
        kept = tokens * (8 if section.keeps == "argmax" else ctx.arch.vocab * 4)
        world = ctx.shard * ctx.replicate
        yield Holding(
            "logits", "predictions gathered from all ranks, one batch", kept * world, ctx.moments & {at.EVAL_GATHER}, "tokens x kept_bytes x ranks",
            {"tokens": tokens, "kept_bytes": kept // max(1, tokens), "ranks": world},
            "transformers trainer.evaluation_loop: eval_accumulation_steps None keeps every batch on the device (accelerate returns fp32)",
            error="grows by this much with every evaluation batch", need="avoidable",
        )  # fmt: skip


def _cache(ctx: Context, tokens: int) -> Iterator[Holding]:
    """Keys and values of every layer: checkpointing switches the cache off in training only, and the Trainer's evaluation leaves it on.

    They are cached as the projections give them: in fp32 where k-bit preparation has widened the stream, which a quantised layer answers in.
    Under autocast accelerate hands on all outputs as fp32, and what it copies stays until the last is done (utils/operations.py convert_to_fp32).
    """
    known = ctx.version("transformers")
    off = ctx.job.framework.use_cache is False and _written(ctx)
    if off or ctx.framework != "hf-trainer" or ctx.source not in ("huggingface", "remote-code") or known is None or known >= NO_CACHE_SINCE:
        return
    copied = ctx.autocast and ctx.compute < 4 and not _widened(ctx)
    element = 4 if _widened(ctx) else ctx.compute + (4 if copied else 0)
    for block, layers in ctx.blocks:
        if block.heads and block.latent is None and ctx.arch.causal:
            each = element * block.kv_heads * (block.head_dim + block.v_head_dim)
            values = {"layers": layers, "tokens": tokens, "bytes a token": each}
            yield Holding(
                "decode-cache", "keys and values of the evaluation batch", layers * each * tokens, ctx.moments & {at.EVAL_FORWARD},
                "layers x tokens x bytes a token", values,
                "transformers modeling_llama.py before version 5: use_cache goes off where gradient_checkpointing and self.training", need="avoidable",
            )  # fmt: skip


def _widened(ctx: Context) -> bool:
    return ctx.method in ADAPTED and ctx.base in KBIT and ctx.job.method.kbit_preparation is True


def _written(ctx: Context) -> bool:
    fact = ctx.run.facts.get("framework.use_cache")
    return fact is None or fact.kind in ("stated", "read")


def apart(ctx: Context, held: Sequence[Holding]) -> int:
    """Bytes of the evaluation alone, where its batch has more tokens than training's, so that few freed blocks of training are large enough for its tensors."""
    section = ctx.job.eval
    if section is None or (section.micro_batch or 0) <= ctx.micro_batch:
        return 0
    return sum(h.bytes for h in held if h.device == "gpu" and h.moments and h.moments <= ONLY and at.EVAL_FORWARD in h.moments)
