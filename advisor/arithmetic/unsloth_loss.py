"""Unsloth's loss: by version whole logits, Apple's cut cross entropy, or chunks as large as the card has room for.

Read in unsloth 2024.8, 2024.11.10, 2025.1.5, 2025.7.11, 2025.8.5 and 2025.9.1 (models/llama.py CausalLM_fast_forward, kernels/cross_entropy_loss.py)
and unsloth_zoo 2025.9.1 (fused_losses/cross_entropy_loss.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from advisor.arithmetic import moments as at
from advisor.arithmetic.context import Context
from advisor.arithmetic.losses import Loss
from advisor.arithmetic.parameters import ADAPTED
from advisor.arithmetic.weights import resident
from advisor.ledger import Holding

CUT_SINCE = (2024, 11, 10)  # cut_cross_entropy's linear_cross_entropy: logits stay in the kernel's blocks
SHORT_SINCE, SHORT = (2025, 1), 1024  # "bsz*q_len <= 1024: RETURN_LOGITS = True"
CHUNKED_SINCE = (2025, 8, 5)  # unsloth_zoo's own chunks, sized by what the card has free
SHARE_OF_FREE = 0.5  # _get_chunk_multiplier: target_gb is half of what mem_get_info calls free
ENTRY = 4  # its measure of one entry: fp32


def whole(ctx: Context) -> bool:
    """Whether this version makes all logits of this batch."""
    version = ctx.version("unsloth")
    if version is not None and version < CUT_SINCE:
        return True
    return ctx.tokens <= SHORT and (version is None or version >= SHORT_SINCE)


def on_logits(ctx: Context, logits: int) -> Loss:
    """Its cross entropy on whole logits: they are all that is kept, and their gradient is written over them.

    Under autocast accelerate's wrapper copies the model's outputs to fp32 when the forward pass is over, logits included.
    """
    copy = 4 if ctx.autocast and logits < 4 else 0
    why = "logits + their fp32 copy in the outputs; backward: the gradient over the logits"
    source = "unsloth kernels/cross_entropy_loss.py Fast_CrossEntropyLoss; accelerate utils/operations.py convert_outputs_to_fp32"
    return Loss(logits + copy, float(logits), float(copy or logits), why, source)


def chunks(ctx: Context) -> int:
    """Into how many chunks unsloth_zoo's loss goes: so many that a chunk's fp32 logits take an eighth of the card's free memory; one at least.

    Free is taken as the card less the model. Where the card is not known, one chunk: an upper bound.
    """
    usable = ctx.run.usable
    if usable is None:
        return 1
    free = max(usable[0] - resident(ctx), 1)
    return max(round(ctx.tokens * ctx.arch.vocab * ENTRY / (SHARE_OF_FREE * free) / 4) * 4, 1)


def fused(ctx: Context) -> Iterator[Holding]:
    """The loss without whole logits."""
    tokens, hidden, vocab, e = ctx.tokens, ctx.arch.hidden, ctx.arch.vocab, ctx.compute
    source = "unsloth_zoo fused_losses/cross_entropy_loss.py UnslothFusedLoss"
    version = ctx.version("unsloth")
    if version is None or version >= CHUNKED_SINCE:
        number = chunks(ctx)
        chunk = -(-tokens // number)
        values = {"chunk": chunk, "chunks": number, "vocabulary": vocab, "bytes": 2 * e}
        moments, known = frozenset({at.LOSS_FORWARD}), None if ctx.run.usable else "the number of chunks follows from the card, which is not known"
        yield Holding(
            "logits", "logits of a chunk and their gradient", chunk * vocab * 2 * e, moments, "chunk x vocabulary x bytes", values, source, error=known
        )
    else:
        source = "cut_cross_entropy linear_cross_entropy, as unsloth_zoo loss_utils.py calls it"
    values = {"tokens": tokens, "hidden": hidden, "bytes": e}
    both = frozenset({at.LOSS_FORWARD, at.LOSS_BACKWARD})
    yield Holding("logits", "gradient of the hidden states", tokens * hidden * e, both, "tokens x hidden x bytes", values, source)
    if ctx.method not in ADAPTED:
        values = {"vocabulary": vocab, "hidden": hidden, "bytes": ctx.weight}
        head = vocab * hidden * ctx.weight
        yield Holding(
            "gradients", "gradient of the head, made in the forward pass", head, frozenset({at.LOSS_FORWARD}), "vocabulary x hidden x bytes", values, source
        )
