"""The pass without graph that gives the policy's log-probabilities of what was generated, before it trains on them.

Its micro batch is a setting of its own and often larger than the training one, and nothing is chunked: the whole logits live at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import ROLLOUT_OBJECTIVES, Context
from advisor.arithmetic.fsdp_units import gathered, largest_block
from advisor.arithmetic.logits import vocabulary, width
from advisor.arithmetic.losses import LOSS_FUNCTION_SINCE
from advisor.arithmetic.sharding import DIVIDES_WEIGHTS
from advisor.arithmetic.token_log_probs import SOURCE, picks, scored
from advisor.ledger import Holding

VERL = "verl workers/actor/dp_actor.py compute_log_prob, utils/torch_functional.py entropy_from_logits, under autocast"
OTHERS = "log-softmax of fp32 logits, then the picked entries"
FORMULA = "tokens x vocabulary x bytes"


def holdings(ctx: Context) -> Iterator[Holding]:
    """Logits of the log-probability pass and its temporaries; the parameters that sharding gathers for it."""
    job = ctx.job
    rows = job.rollout.logprob_micro_batch if job.rollout is not None else None
    if rows is None or job.objective not in ROLLOUT_OBJECTIVES or not ctx.has_head or at.SCORE not in ctx.moments:
        return
    tokens, vocab = rows * ctx.seq_len, vocabulary(ctx)
    each, what, source = _bytes(ctx, rows)
    now = frozenset({at.SCORE})
    values = {"tokens": tokens, "vocabulary": vocab, "bytes": each, "what": what}
    yield Holding("logits", "logits of the log-probability pass", round(tokens * vocab * each), now, FORMULA, values, source)
    if ctx.strategy in DIVIDES_WEIGHTS:
        block, root = largest_block(ctx), ctx.counts.outer
        size = gathered(ctx, block) + gathered(ctx, root)
        values = {"block_elements": block.elements, "root_elements": root.elements}
        yield Holding(
            "communication", "gathered root and block of the log-probability pass", size, now, "(block_elements + root_elements) x bytes", values, source,
            layout="gathered", copy_of="trained weights" if ctx.counts.trained else "frozen weights", need="needed",
        )  # fmt: skip


def _bytes(ctx: Context, rows: int) -> tuple[float, str, str]:
    """Bytes of a token and vocabulary entry at the largest moment of the pass, and what they are.

    verl also takes the entropy, in fp32 under autocast: the softmax 4, then ``logsumexp``'s cast input 4 and its shifted exponentials 4,
    beside the logits (which transformers before 4.46 gives in fp32). Compiled (``use_torch_compile``, its default) the entropy is made row
    by row and only the logits live.
    """
    logits = 4 if not ctx.at_least("transformers", *LOSS_FUNCTION_SINCE) else ctx.compute
    if picks(ctx, ctx.job.activations.loss or "full-fp32"):
        return scored(ctx, width(ctx), rows), "logits + fp32 copy or logits over the temperature, then a row at a time", SOURCE.format("grpo")
    if ctx.framework != "verl":
        wide = 4 if logits < 4 else 0
        return logits + wide + 4, "logits + fp32 copy + log-softmax", OTHERS
    if ctx.run.facts["activations.compile"].kind in ("stated", "read") and not ctx.compiled:
        cast = 4 if logits < 4 else 0
        return logits + 4 + cast + 4, "logits + fp32 softmax + logsumexp's cast and exponentials", VERL
    return logits, "logits; the compiled entropy holds nothing of their size", VERL
