"""What an encoder-decoder keeps outside its layers: each half's own embeddings and last norm, and T5's table of positions as it is added to the scores."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic import settings, traits
from advisor.arithmetic.attention_scores import positioned
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

UNTIL_ENCODER = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST})
UNTIL_END = UNTIL_ENCODER | {at.BACKWARD_FIRST}
RUNNING = frozenset({at.BACKWARD_LAST, at.BACKWARD_FIRST})
T5_SOURCE = "modeling_t5 T5Stack.forward: dropout, layers, final_layer_norm, dropout; the decoder reads the encoder's last states in every layer"
BIAS_SOURCE = "transformers integrations/sdpa_attention.py create_position_bias_mask; ATen attention_backward.cu: grad_bias has the expanded bias's size"


def holdings(ctx: Context) -> Iterator[Holding]:
    """Nothing of a model with one stack, or of code that is not transformers'."""
    if not ctx.arch.encoder_decoder or ctx.source != "huggingface" or not ctx.blocks:
        return
    if traits.of(ctx.arch.model_type).norm == "rms-both":
        yield from _ends(ctx)
    yield from _leaves(ctx)
    if positioned(ctx):
        yield from _positions(ctx)


def _ends(ctx: Context) -> Iterator[Holding]:
    """T5's dropout masks on both halves' embeddings and last states, and the encoder's last norm with the states that the decoder reads.

    The norm keeps its input, an fp32 copy of it where it is narrower, and, where its weight trains, the normalised states.
    """
    stream, mask = settings.stream(ctx), 1 if ctx.arch.hidden_dropout else 0
    trained = ctx.method not in ADAPTED
    masks = mask * (4 if trained or ctx.checkpointing == "full" else 2)
    normed = 4 + (stream if stream < 4 else 0) + (stream if trained else 0)
    states = (ctx.compute if ctx.autocast else 0) + (stream if mask and not ctx.autocast else 0)
    each = ctx.arch.hidden * (masks + normed + states)
    values = {"tokens": ctx.tokens, "hidden": ctx.arch.hidden, "dropout masks": masks, "encoder's last norm": normed, "encoder's states": states}
    formula = "tokens x hidden x (dropout masks + norm + states)"
    yield Holding("activations", "ends of encoder and decoder", ctx.tokens * each, UNTIL_ENCODER, formula, values, T5_SOURCE)


def _leaves(ctx: Context) -> Iterator[Holding]:
    """Embeddings of a frozen table, of which a checkpoint asks gradients (``enable_input_require_grads``): leaves, held until backward reaches them."""
    if ctx.method not in ADAPTED or ctx.checkpointing != "full":
        return
    values = {"halves": 2, "tokens": ctx.tokens, "hidden": ctx.arch.hidden, "bytes": ctx.weight}
    size, formula = 2 * ctx.tokens * ctx.arch.hidden * ctx.weight, "halves x tokens x hidden x bytes"
    yield Holding("activations", "embeddings that gradients are asked of", size, UNTIL_END, formula, values, T5_SOURCE)


def _positions(ctx: Context) -> Iterator[Holding]:
    """Positions ``[1, heads, seq_len, seq_len]`` as numbers to add, which each layer's attention keeps a copy of, and those of cross attention: zeros.

    Where a padded batch brings a mask they are joined with it, a row each: ``[micro_batch, heads, seq_len, seq_len]``. All layers of a half read one
    table's output (UMT5's have their own), which checkpoints hold. Its gradient is made with the batch's size first, then summed.
    """
    padded = ctx.job.batch.packed is False and ctx.micro_batch > 1
    layers = sum(n for _, n in ctx.blocks)
    decoding = sum(n for block, n in ctx.blocks if block.cross)
    heads, rows = max(block.heads for block, _ in ctx.blocks), ctx.micro_batch if padded else 1
    one = heads * ctx.seq_len**2 * ctx.compute
    full, own = ctx.checkpointing == "full", ctx.arch.model_type == "umt5"
    copies = rows * (0 if full else layers + (decoding if padded else 0))
    shared = (0 if padded and not full else 1) + (0 if own or not full else 2)
    values = {"copies": copies, "shared": shared, "heads": heads, "seq_len": ctx.seq_len, "bytes": ctx.compute}
    formula = "(copies + shared) x heads x seq_len x seq_len x bytes"
    yield Holding("attention", "positions added to the scores", (copies + shared) * one, UNTIL_ENCODER, formula, values, BIAS_SOURCE)
    gradient = ctx.micro_batch if ctx.method not in ADAPTED or full else 0
    values = {"a copy": rows if full else 0, "gradient's rows": gradient, "heads": heads, "seq_len": ctx.seq_len, "bytes": ctx.compute}
    formula = "(a copy + gradient's rows) x heads x seq_len x seq_len x bytes"
    yield Holding(
        "attention", "positions of the running block and their gradient", ((rows if full else 0) + gradient) * one, RUNNING, formula, values, BIAS_SOURCE
    )
