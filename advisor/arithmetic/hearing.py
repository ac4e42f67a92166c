"""Whisper's encoder: 30 seconds of sound in every sample, 1,500 positions whatever the text's length; its convolutions; the decoder's view of it."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.architecture import Block
from advisor.arithmetic import moments as at
from advisor.arithmetic import settings
from advisor.arithmetic.batches import on_card
from advisor.arithmetic.blocks.block import settled
from advisor.arithmetic.blocks.tape import Size
from advisor.arithmetic.context import Context
from advisor.arithmetic.parameters import ADAPTED
from advisor.ledger import Holding

UNTIL_ENCODER = frozenset({at.FORWARD, at.LOSS_FORWARD, at.LOSS_BACKWARD, at.BACKWARD_LAST, at.BACKWARD_FIRST})
RUNNING = frozenset({at.BACKWARD_LAST, at.BACKWARD_FIRST})
FRAMES = 2  # a position: the second convolution has a stride of 2
FEATURE = 4  # the feature extractor gives fp32
SOURCE = "autograd's saved tensors of modeling_whisper WhisperEncoder.forward and WhisperAttention.forward (transformers 5.24)"


def hears(ctx: Context) -> bool:
    """Whether the encoder has a length of its own, so that its blocks are counted here."""
    return bool(ctx.arch.sources) and ctx.source == "huggingface"


def holdings(ctx: Context) -> Iterator[Holding]:
    """The features, what convolutions, encoder blocks and last norm keep, and the decoder's keys and values of the encoder's states."""
    if not hears(ctx) or not ctx.blocks:
        return
    positions = ctx.micro_batch * ctx.arch.sources
    yield from _features(ctx, positions)
    yield from _ends(ctx, positions)
    for block, count in ctx.blocks:
        yield from _across(ctx, block, count, positions) if block.cross else _encoder(ctx, block, count, positions)


def _features(ctx: Context, positions: int) -> Iterator[Holding]:
    """The log-mel features as the data loader brings them; in the convolution's dtype too where that is narrower and trains."""
    mels = next((t.shape[1] for t in ctx.arch.outer if t.name == "conv1"), 0)
    batches, wide = on_card(ctx), FEATURE if ctx.autocast else ctx.weight
    size = FRAMES * positions * mels
    values = {"micro batches": batches, "frames": FRAMES * positions, "mel bins": mels, "bytes": wide}
    yield Holding("activations", "features of the sound", batches * size * wide, at.COMPUTE, "micro batches x frames x mel bins x bytes", values, SOURCE)
    if ctx.autocast and ctx.method not in ADAPTED:
        values = {"frames": FRAMES * positions, "mel bins": mels, "bytes": ctx.compute}
        yield Holding("activations", "features as the convolution reads them", size * ctx.compute, UNTIL_ENCODER, "frames x mel bins x bytes", values, SOURCE)


def _ends(ctx: Context, positions: int) -> Iterator[Holding]:
    """Before the blocks, inputs of both activations and of the second convolution (frozen or not, it saves it); behind them the norm's input and the states.

    With adapters and checkpointing gradients are asked of what the first convolution gives (``enable_input_require_grads``); else of nothing there.
    The decoder's backward pass adds up the states' gradient.
    """
    stream = settings.stream(ctx)
    asked = ctx.method not in ADAPTED or ctx.checkpointing == "full"
    frames = (FRAMES * 2 + 1) * ctx.compute if asked else 0
    each = ctx.arch.hidden * (frames + stream + stream)
    values = {"positions": positions, "hidden": ctx.arch.hidden, "convolutions": frames, "norm": stream, "states": stream}
    formula = "positions x hidden x (convolutions + norm + states)"
    yield Holding("activations", "ends of the encoder", positions * each, UNTIL_ENCODER, formula, values, SOURCE)
    values = {"positions": positions, "hidden": ctx.arch.hidden, "bytes": stream}
    size, formula = positions * ctx.arch.hidden * stream, "positions x hidden x bytes"
    yield Holding("activations", "gradient of the encoder's states", size, RUNNING, formula, values, SOURCE)


def _across(ctx: Context, block: Block, count: int, positions: int) -> Iterator[Holding]:
    """Keys and values of cross attention beyond the text's length, which the decoder block counts: of each layer, or of the one that runs.

    Under autocast each projection casts the encoder's states anew, and keeps the cast where its weight trains or has an adapter.
    """
    more = max(0, positions - ctx.tokens)
    s = settings.of(ctx, block)
    casts = 2 if s.autocast and (s.trained or s.adapted & {"k_proj", "v_proj"}) else 0
    each = (2 + casts) * block.heads * block.head_dim * ctx.compute
    full = ctx.checkpointing == "full"
    values = {"layers": 1 if full else count, "positions": more, "bytes a position": each}
    formula, name = "layers x positions x bytes a position", "keys and values of the encoder's states"
    if not full:
        yield Holding("activations", name, count * more * each, UNTIL_ENCODER - {at.BACKWARD_FIRST}, formula, values, SOURCE)
        return
    gradients = 2 * block.heads * block.head_dim * ctx.compute
    values = {**values, "their gradients": gradients}
    yield Holding("activations", f"{name} of the running block", more * (each + gradients), RUNNING, formula, values, SOURCE)


def _encoder(ctx: Context, block: Block, count: int, positions: int) -> Iterator[Holding]:
    c = settled(block, ctx.arch.hidden, settings.of(ctx, block))
    keys, full = ctx.arch.sources, ctx.checkpointing == "full"

    def size(found: Size) -> int:
        return round(found[0] * positions + found[1] * positions * keys + found[2] + found[3])

    kept = size(c.input if full else c.total)
    values = {"blocks": count, "positions": positions, "bytes a block": kept}
    name = "encoder (checkpoints)" if full else "encoder"
    yield Holding("activations", name, count * kept, UNTIL_ENCODER, "blocks x bytes a block", values, SOURCE)
    running = max([size(s.saved) + size(s.live) for s in c.backward] + [size(s) for s in c.again])
    yield from _running(ctx, block, kept, running, count, full=full)


def _running(ctx: Context, block: Block, kept: int, running: int, count: int, *, full: bool) -> Iterator[Holding]:
    """The encoder runs backward when the decoder has its gradients: told as what it needs beyond all of its own gradients, which this moment counts."""
    units = [unit for unit in ctx.counts.blocks if unit.name == f"{block.kind} block"]  # where some layers train, in two units
    own = sum(unit.layers * (unit.trained * ctx.gradient + unit.adapters * ctx.adapter) for unit in units) if not ctx.gradients_kept else 0
    first = kept * (count if full else count - 1) + running - own
    last = (kept if full else 0) + running - own // max(1, count)
    values = {"blocks": count, "bytes a block keeps": kept, "bytes of the running block": running, "bytes of the encoder's gradients": own}
    formula = "the larger of kept x blocks + running - gradients, and kept + running - gradients / blocks"
    yield Holding("activations", "encoder as it runs backward", max(0, first, last), frozenset({at.BACKWARD_ROOT}), formula, values, SOURCE)
