"""Keys and values that a training forward pass keeps for a generation that never comes."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import colossal, settings
from advisor.arithmetic import moments as at
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.context import Context
from advisor.ledger import Holding

UNGUARDED = frozenset({"gpt_bigcode"})  # models that do not switch use_cache off under checkpointing
GUARDED_SINCE = (4, 53)  # transformers' GradientCheckpointingLayer switches it off for every model
SOURCE = "transformers modeling_gpt_bigcode (use_cache stays on): each cached view pins the whole fused attention projection"
OWN_LOOPS = frozenset({None, "custom"})  # loops that wrap blocks themselves, so that the model's own guard does not see any checkpointing
OWN = "keys and values of the forward pass"
REFERENCE = "ColossalChat coati/trainer/dpo.py: ref_model.eval() is called without use_cache=False, so that its outputs have the cache of every layer"
WRAPPED = "transformers modeling_llama.py past_key_values; torch checkpoint_wrapper leaves model.gradient_checkpointing False (llama-cookbook pull request 165)"


def holdings(ctx: Context) -> Iterator[Holding]:
    """What the cache holds from the forward pass until the model's outputs are dropped.

    Without checkpointing autograd keeps the same tensors, so nothing is added.
    """
    said = ctx.run.facts.get("framework.use_cache")
    written = said is None or said.kind in ("stated", "read")
    switched_off = ctx.job.framework.use_cache is False and written  # a default does not reach these models
    if colossal.refers(ctx) and not switched_off:
        yield from _of_layers(ctx, frozenset({at.LOSS_FORWARD}), "keys and values of the reference's forward pass", REFERENCE)
    if ctx.checkpointing == "none":
        return
    unguarded = ctx.arch.model_type in UNGUARDED and not ctx.at_least("transformers", *GUARDED_SINCE)
    if unguarded and not switched_off:
        yield from _pinned(ctx)
    elif ctx.job.framework.use_cache and written and ctx.framework in OWN_LOOPS and ctx.source == "huggingface":
        yield from _by_wrapper(ctx)


def _pinned(ctx: Context) -> Iterator[Holding]:
    """Fused query-key-value outputs, which the cached views pin."""
    for block, layers in ctx.blocks:
        pinned = settled(block, ctx.arch.hidden, settings.of(ctx, block)).projection[0]
        if pinned:
            each = round(pinned * ctx.tokens)
            values = {"layers": layers, "tokens": ctx.tokens, "bytes a token": round(pinned)}
            yield _cache(OWN, layers * each, frozenset({at.FORWARD, at.LOSS_FORWARD}), values, SOURCE)


def _by_wrapper(ctx: Context) -> Iterator[Holding]:
    """Keys and values of every layer, in the compute dtype; through the backward pass too where the loop keeps the outputs they are part of."""
    moments = {at.FORWARD, at.LOSS_FORWARD}
    if ctx.job.framework.keeps_outputs:
        moments |= {at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST, at.BACKWARD_ROOT}
    yield from _of_layers(ctx, frozenset(moments), OWN, WRAPPED)


def _of_layers(ctx: Context, moments: frozenset[str], name: str, source: str) -> Iterator[Holding]:
    for block, layers in ctx.blocks:
        if block.heads and block.latent is None:
            each = ctx.compute * block.kv_heads * (block.head_dim + block.v_head_dim)
            values = {"layers": layers, "tokens": ctx.tokens, "bytes a token": each}
            yield _cache(name, layers * each * ctx.tokens, moments, values, source)


def _cache(name: str, size: int, moments: frozenset[str], values: dict[str, int], source: str) -> Holding:
    return Holding("decode-cache", name, size, moments, "layers x tokens x bytes a token", values, source, need="avoidable")
