"""Keys and values that a training forward pass keeps for a generation that never comes."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic import settings
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

UNGUARDED = frozenset({"gpt_bigcode"})  # models that do not switch use_cache off under checkpointing
GUARDED_SINCE = (4, 53)  # transformers' GradientCheckpointingLayer switches it off for every model
SOURCE = "transformers modeling_gpt_bigcode (use_cache stays on): each cached view pins the whole fused attention projection"


def holdings(ctx: Context) -> Iterator[Holding]:
    """The fused query-key-value outputs that the cache pins, from the forward pass until the model's outputs are dropped.

    Without checkpointing autograd keeps the same tensors, so nothing is added.
    """
    unguarded = ctx.arch.model_type in UNGUARDED and not ctx.at_least("transformers", *GUARDED_SINCE)
    said = ctx.run.facts.get("framework.use_cache")
    switched_off = ctx.job.framework.use_cache is False and (said is None or said.kind in ("stated", "read"))  # a default does not reach this model
    if ctx.checkpointing == "none" or not unguarded or switched_off:
        return
    for block, layers in ctx.blocks:
        pinned = settled(block, ctx.arch.hidden, settings.of(ctx, block)).projection[0]
        if pinned:
            each = round(pinned * ctx.tokens)
            values = {"layers": layers, "tokens": ctx.tokens, "bytes a token": round(pinned)}
            moments = frozenset({at.FORWARD, at.LOSS_FORWARD})
            yield Holding(
                "decode-cache",
                "keys and values of the forward pass",
                layers * each,
                moments,
                "layers x tokens x bytes a token",
                values,
                SOURCE,
                need="avoidable",
            )
