"""Losses that never hold all logits: the head's product is made chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

FORWARD = frozenset({at.LOSS_FORWARD})
BACKWARD = frozenset({at.LOSS_BACKWARD})
TORCHTUNE_CHUNKS = 8  # torchtune CEWithChunkedOutputLoss num_output_chunks; axolotl monkeypatch/loss/chunked.py the same
WRAPPED_CHUNKS = 8  # torchtitan components/loss.py ChunkedLossWrapper num_chunks
TRL_ROWS, TRL_COLUMNS = 4096, 32768  # trl kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE
TRL_TILED_SINCE, TRL_TOKENS = (1, 15), 256  # before: trl trainer/sft_trainer.py _CHUNKED_LM_HEAD_CHUNK_SIZE
LITGPT_CHUNK = 128  # litgpt finetune: lm_head_chunk_size=128, chunked_cross_entropy chunk_size=128
STORAGE_SINCE = (0, 8)  # liger-kernel with one chunk buffer that every chunk is written to


def chunk_of(tokens: int, hidden: int, vocab: int) -> int:
    """Tokens of a chunk of Liger's fused linear cross entropy: next power of two of ``tokens / ceil(vocab / hidden)``."""
    factor = -(-vocab // hidden)
    per = -(-tokens // factor)
    return min(1 << (per - 1).bit_length(), max(tokens, 1))


def fused_linear(ctx: Context) -> Iterator[Holding]:
    """Liger's fused linear cross entropy: gradients of input and head weight are made in the forward pass.

    Per chunk: the logits and, before 0.8, the chunk of the round before and its scaled copy (the names are rebound only after the new
    product exists). The head's gradient lives from here on; :mod:`advisor.arithmetic.gradients` counts it from the backward pass.
    """
    tokens, hidden, vocab, e = ctx.tokens, ctx.arch.hidden, ctx.arch.vocab, ctx.compute
    chunk = chunk_of(tokens, hidden, vocab)
    version = ctx.version("liger-kernel") or ctx.version("liger_kernel")
    buffers = 1 if version is None or version >= STORAGE_SINCE else 3 if version < (0, 5, 3) else 2
    values = {"buffers": buffers, "chunk": chunk, "vocabulary": vocab, "bytes": e}
    source = "liger-kernel ops/fused_linear_cross_entropy.py"
    yield Holding("logits", "chunks of logits", buffers * chunk * vocab * e, FORWARD, "buffers x chunk x vocabulary x bytes", values, source)
    values = {"tokens": tokens, "hidden": hidden, "bytes": e}
    yield Holding("logits", "gradient of the hidden states", tokens * hidden * e, FORWARD | BACKWARD, "tokens x hidden x bytes", values, source)
    if ctx.method not in ADAPTED:
        values = {"vocabulary": vocab, "hidden": hidden, "bytes": ctx.weight}
        yield Holding(
            "gradients", "gradient of the head, made in the forward pass", vocab * hidden * ctx.weight, FORWARD, "vocabulary x hidden x bytes", values, source
        )


def chunked(ctx: Context, vocab: int) -> Iterator[Holding]:
    """Losses over chunks: of whole logits (torchtune's, axolotl's, litgpt's), or of the head's product too (torchtitan's and the others)."""
    entries = ctx.tokens * vocab
    values = {"tokens": ctx.tokens, "vocabulary": vocab}
    if ctx.source == "torchtune" or ctx.framework == "torchtune":
        yield from _torchtune(ctx, vocab)
    elif ctx.framework == "trl":
        tiled = ctx.at_least("trl", *TRL_TILED_SINCE) or ctx.job.objective not in (None, "sft", "pretrain")
        yield from (_trl if tiled else _trl_checkpointed)(ctx, vocab)
    elif ctx.framework == "axolotl":
        yield from _axolotl(ctx, vocab)
    elif ctx.source == "litgpt" or ctx.framework == "litgpt":
        yield from _litgpt(ctx, values, entries)
    else:
        yield from _by_chunk(ctx, vocab)


def _by_chunk(ctx: Context, vocab: int) -> Iterator[Holding]:
    """Head, loss and backward of one chunk before the next: the logits of a chunk, an fp32 buffer for the hidden states' gradient, the head's gradient.

    torchtitan components/loss.py ChunkedLossWrapper (0.3). Others with such a loss choose their own number of chunks.
    """
    chunk, e = -(-ctx.tokens // WRAPPED_CHUNKS), ctx.compute
    each = 2 * e if ctx.compiled else 12  # compiled: logits and their gradient; else log-softmax and two fp32 gradients
    source = "torchtitan components/loss.py ChunkedLossWrapper, GradAccumulator(dtype=float32)"
    values = {"chunk": chunk, "vocabulary": vocab, "bytes": each}
    other = None if ctx.framework == "torchtitan" else "the number of chunks is the framework's; eight are taken"
    yield Holding("logits", "logits and loss of one chunk", chunk * vocab * each, FORWARD, "chunk x vocabulary x bytes", values, source, error=other)
    values = {"tokens": ctx.tokens, "hidden": ctx.arch.hidden, "bytes": 4}
    buffer = ctx.tokens * ctx.arch.hidden * 4
    yield Holding("logits", "gradient of the hidden states as fp32", buffer, FORWARD | BACKWARD, "tokens x hidden x bytes", values, source, dtype="fp32")
    if ctx.method not in ADAPTED:
        values = {"vocabulary": vocab, "hidden": ctx.arch.hidden, "bytes": e}
        head = vocab * ctx.arch.hidden * e
        yield Holding("gradients", "gradient of the head, made chunk by chunk", head, FORWARD, "vocabulary x hidden x bytes", values, source)


def _trl(ctx: Context, vocab: int) -> Iterator[Holding]:
    """TRL's log-probabilities from hidden states: one tile of logits at a time, made anew in backward; gradients of hidden states and head in fp32.

    The fp32 gradient of the head and its cast to the weight's dtype are there together when the function returns.
    """
    rows, columns, hidden = min(ctx.tokens, TRL_ROWS), TRL_COLUMNS, ctx.arch.hidden  # the tile is as wide for a smaller vocabulary
    source = "trl kernels/chunked_logprob.py (1.15, 1.16), trainer/utils.py add_fused_lm_head"
    tile = {"rows": rows, "columns": columns, "bytes": ctx.compute}
    yield Holding("logits", "tile of logits", rows * columns * ctx.compute, FORWARD | BACKWARD, "rows x columns x bytes", tile, source)
    values = {"tokens": ctx.tokens, "hidden": hidden, "bytes": 4 + ctx.compute}
    size = ctx.tokens * hidden * (4 + ctx.compute)
    yield Holding("logits", "gradient of the hidden states as fp32, and its cast", size, BACKWARD, "tokens x hidden x bytes", values, source)
    if ctx.method not in ADAPTED:
        each = 4 if ctx.weight == 4 else 4 + ctx.weight
        values = {"vocabulary": vocab, "hidden": hidden, "bytes": each}
        yield Holding("gradients", "gradient of the head as fp32, and its cast", vocab * hidden * each, BACKWARD, "vocabulary x hidden x bytes", values, source)


def _trl_checkpointed(ctx: Context, vocab: int) -> Iterator[Holding]:
    """TRL 1.4 to 1.14: 256 tokens at a time, each chunk checkpointed, on a copy of the head in fp32 (``h.float() @ w.float().t()``).

    Forward: that copy and a chunk's logits, or logits, log-softmax, exponentials and their product. Backward makes a chunk anew (copy, logits,
    log-softmax, exponentials) and then the head's gradient in fp32 beside the copy; the chunks' sum in the weight's dtype is there all along.
    """
    chunk, hidden, source = min(ctx.tokens, TRL_TOKENS), ctx.arch.hidden, "trl trainer/sft_trainer.py _chunk, _chunked_cross_entropy_loss (1.7, 1.14)"
    head, entries, logit = vocab * hidden, chunk * vocab, ctx.compute if ctx.autocast else 4
    wide = head * 4 if ctx.weight < 4 and not ctx.autocast else 0  # under autocast the cast to the compute dtype is among the weights
    trains = ctx.method not in ADAPTED
    values = {"vocabulary": vocab, "hidden": hidden, "bytes": 4}
    if wide + entries * logit > entries * (logit + 12):
        yield Holding("weights", "head as fp32, for one chunk", wide, FORWARD, "vocabulary x hidden x bytes", values, source, dtype="fp32")
        each = {FORWARD: logit}
    else:
        each = {FORWARD: logit + 12}
    again, product = wide + entries * (logit + 8), wide + head * 4 + entries * 4
    if trains and product > again:
        yield Holding("gradients", "gradient of the head from one chunk, fp32", head * 4, BACKWARD, "vocabulary x hidden x bytes", values, source, dtype="fp32")
    each[BACKWARD] = logit + 8 if again >= product or not trains else 0 if ctx.autocast else 4
    if wide:
        yield Holding("weights", "head as fp32, kept for the chunk", wide, BACKWARD, "vocabulary x hidden x bytes", values, source, dtype="fp32")
    for moments, size in each.items():
        values = {"chunk": chunk, "vocabulary": vocab, "bytes": size}
        yield Holding("logits", "logits and loss of one chunk", entries * size, moments, "chunk x vocabulary x bytes", values, source)
    if trains and ctx.tokens > TRL_TOKENS:
        values = {"vocabulary": vocab, "hidden": hidden, "bytes": ctx.weight}
        yield Holding("gradients", "gradient of the head, sum of the chunks", head * ctx.weight, BACKWARD, "vocabulary x hidden x bytes", values, source)
    values = {"tokens": ctx.tokens, "hidden": hidden, "bytes": ctx.weight}
    size = ctx.tokens * hidden * ctx.weight
    yield Holding("logits", "hidden states of the tokens with labels", size, FORWARD | BACKWARD, "tokens x hidden x bytes", values, source)
    yield Holding("logits", "gradient of these hidden states", size, BACKWARD, "tokens x hidden x bytes", values, source)


def _axolotl(ctx: Context, vocab: int) -> Iterator[Holding]:
    """Whole logits in their own dtype, a compiled loss on each of eight views: it keeps the views; their gradients are joined into one at the end."""
    entries, e = ctx.tokens * vocab, ctx.compute if ctx.autocast else ctx.weight
    formula, source = "tokens x vocabulary x bytes", "axolotl monkeypatch/loss/chunked.py: chunk() of the logits, torch.compile of one chunk's loss"
    values = {"tokens": ctx.tokens, "vocabulary": vocab}
    yield Holding("logits", "logits", entries * e, FORWARD, formula, {**values, "bytes": e}, source)
    yield Holding("logits", "logits, the chunks' gradients, and these joined", entries * 3 * e, BACKWARD, formula, {**values, "bytes": 3 * e}, source)


def _torchtune(ctx: Context, vocab: int) -> Iterator[Holding]:
    """torchtune's chunked losses, eight chunks.

    Until 0.6 (CEWithChunkedOutputLoss): all chunks' logits, and the fp32 log-softmax of each, are kept; all chunks' gradients exist before the
    head's backward. Since (LinearCrossEntropyLoss, which makes the logits too): a chunk keeps its fp32 log-softmax, or, compiled, its
    logits only; its backward is whole before the next chunk's.
    """
    entries, e = ctx.tokens * vocab, ctx.compute if ctx.autocast else ctx.weight
    chunk = -(-ctx.tokens // TORCHTUNE_CHUNKS)
    formula, source = "tokens x vocabulary x bytes + chunk x vocabulary x chunk bytes", "torchtune modules/loss"
    separate = not ctx.at_least("torchtune", 0, 7)
    kept = e + (0 if ctx.compiled else 4) if separate else e if ctx.compiled else 4
    inside = e if ctx.compiled else e + 8  # logits, their fp32 copy and log-softmax of the chunk at hand
    values = {"tokens": ctx.tokens, "vocabulary": vocab, "chunk": chunk}
    forward = entries * kept + chunk * vocab * inside
    yield Holding("logits", "chunked logits and loss, forward", forward, FORWARD, formula, {**values, "bytes": kept, "chunk bytes": inside}, source)
    born = e if separate else 0
    back = e if ctx.compiled else 8
    size = entries * (kept + born) + chunk * vocab * back
    yield Holding("logits", "chunked loss, backward", size, BACKWARD, formula, {**values, "bytes": kept + born, "chunk bytes": back}, source)


def _litgpt(ctx: Context, values: dict[str, int], entries: int) -> Iterator[Holding]:
    """litgpt: Fabric casts the module's outputs to fp32, so logits and log-softmax are 4 bytes each whatever the precision.

    The gradients of all chunks exist before the head's backward begins (autograd runs the later nodes first), each in the place of its
    log-softmax. The loop's ``logits`` stay named until the next forward pass has returned, so the old ones are there when the new ones are cast.
    """
    source = "lightning fabric precision.convert_output; litgpt finetune: lm_head_chunk_size 128, utils.chunked_cross_entropy"
    formula = "tokens x vocabulary x bytes"
    held = frozenset(ctx.moments & (at.TRAINING - {at.LOSS_FORWARD}))
    fp32 = {**values, "bytes": 4}
    yield Holding("logits", "logits as fp32, named until the next forward pass returns", entries * 4, held, formula, fp32, source, dtype="fp32")
    cast = {**values, "bytes": 8 + ctx.weight, "sum": "old logits 4 + new logits in their dtype + their fp32 copy 4"}
    yield Holding("logits", "logits of this and of the last step", entries * (8 + ctx.weight), frozenset({at.LOSS_FORWARD}), formula, cast, source)
    yield Holding("logits", "log-softmax of all chunks, then their gradients", entries * 4, BACKWARD, formula, fp32, source, dtype="fp32")
    chunk = min(LITGPT_CHUNK, ctx.tokens)
    one = {"chunk": chunk, "vocabulary": values["vocabulary"], "bytes": 4}
    yield Holding(
        "logits", "gradient of one chunk's log-softmax", chunk * values["vocabulary"] * 4, BACKWARD, "chunk x vocabulary x bytes", one, source, dtype="fp32"
    )
