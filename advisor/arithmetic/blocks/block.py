"""One block, put together; counted once for a structure and remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from advisor.architecture import Block
from advisor.arithmetic.blocks.altup import altup, streams
from advisor.arithmetic.blocks.attention import attention
from advisor.arithmetic.blocks.litgpt import litgpt
from advisor.arithmetic.blocks.megatron import megatron
from advisor.arithmetic.blocks.mixer import mix
from advisor.arithmetic.blocks.mlp import mlp
from advisor.arithmetic.blocks.moe import moe
from advisor.arithmetic.blocks.operations import all_gather, cast, norm, reduce_scatter, residual
from advisor.arithmetic.blocks.per_layer import beside_mlp, has_own_embedding, own_embedding
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Counted, Tape, Value
from advisor.arithmetic.blocks.tiled import tiled

LAYER_SCALES = ("lambda_", "layer_scale", "lambda1")


@lru_cache(maxsize=2048)
def count(block: Block, hidden: int, setting: Setting) -> Counted:
    """What autograd keeps of one block, and what its forward and backward pass need beside."""
    tape = Tape()
    share = hidden / setting.tensor if setting.sequence else hidden
    x = tape.enter("residual stream", share * streams(block), setting.stream, grad=setting.input_grad)
    return tape.count(_describe(setting, block)(tape, setting, block, x, hidden))


@lru_cache(maxsize=2048)
def settled(block: Block, hidden: int, setting: Setting) -> Counted:
    """:func:`count` with the residual stream in the dtype that the block itself returns.

    A block can widen the stream: under autocast a layer norm gives fp32, and a quantised layer answers in the dtype it was asked in.
    From the second block on the input is then wide.
    """
    counted = count(block, hidden, setting)
    if counted.output[0] <= counted.input[0] or not counted.input[0]:
        return counted
    return count(block, hidden, replace(setting, stream=round(setting.stream * counted.output[0] / counted.input[0])))


def _describe(setting: Setting, block: Block) -> Callable[[Tape, Setting, Block, Value, int], Value]:
    if setting.source == "megatron":
        return megatron
    if setting.source == "litgpt" and block.experts is None and block.latent is None:
        return litgpt
    return altup if streams(block) > 1 else dense


def dense(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """A decoder or encoder layer: norm, attention, norm, MLP; side by side on one norm; or with the norms behind."""
    if s.post:
        x = residual(tape, x, norm(tape, s, _attended(tape, s, block, x, hidden), "attention norm"))
        return residual(tape, x, norm(tape, s, _fed(tape, s, block, x, hidden), "MLP norm"))
    if s.around:
        x = norm(tape, s, residual(tape, _attended(tape, s, block, x, hidden), x), "attention norm")
        return norm(tape, s, residual(tape, _fed(tape, s, block, x, hidden), x), "MLP norm")
    has_mlp = block.experts is not None or block.mlp_width > 0
    has_mixing = block.mixer is not None or block.heads > 0
    if block.parallel:
        normed = norm(tape, s, x, "attention norm")
        attended = _attended(tape, s, block, normed, hidden)
        second = normed if block.norms < 2 else norm(tape, s, x, "MLP norm")
        return residual(tape, residual(tape, _fed(tape, s, block, second, hidden), attended), x)
    if has_mixing:
        alone = block.mixer is not None and block.norms == 1 and x.element > s.norm  # an fp32 stream is narrowed first (modeling_falcon_mamba FalconMambaBlock)
        entry = cast(tape, x, s.norm, "stream in the norm's dtype") if alone else x
        y = _scaled(tape, s, block, _attended(tape, s, block, norm(tape, s, entry, "attention norm"), hidden), "attention")
        x = residual(tape, x, norm(tape, s, y, "norm after attention") if block.norms >= 4 else y)
    if block.cross:
        x = residual(tape, x, _attended(tape, s, replace(block, mixer=None), norm(tape, s, x, "cross-attention norm"), hidden))
    if not has_mlp:
        return x
    normed = norm(tape, s, x, "MLP norm")
    both = block.experts is not None and block.mlp_width > 0
    y = beside_mlp(tape, s, block, x, normed, hidden) if both else _scaled(tape, s, block, _fed(tape, s, block, normed, hidden), "MLP")
    x = residual(tape, x, norm(tape, s, y, "norm after MLP") if block.norms >= 4 else y)
    return own_embedding(tape, s, block, x, hidden) if has_own_embedding(block) else x


def _scaled(tape: Tape, s: Setting, block: Block, y: Value, name: str) -> Value:
    """A branch times a learned scale a channel, whose gradient reads the branch (modeling_internvl lambda_1 and lambda_2, modeling_dinov2 layer_scale)."""
    if not any(t.name.startswith(LAYER_SCALES) for t in block.tensors):
        return y
    temp = (y.width * y.element, 0.0, 0.0, 0.0) if s.trained else NOTHING  # gradient x branch, before it is summed over the tokens
    kept, weights = (y,) if s.trained else (), y.width if s.trained else 0.0
    return tape.run(f"{name} layer scale", (y,), y.width, y.element, saves=kept, backward=temp, weights=weights, label=f"scaled {name} output")


def _attended(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """Attention or its stand-in on the whole sequence, its result divided again where the sequence is."""
    with tape.group("self_attn"):
        x = all_gather(tape, s, x, hidden, "attention input")
        y = mix(tape, s, block, block.mixer, x, hidden) if block.mixer is not None else attention(tape, s, block, x, hidden)
        return reduce_scatter(tape, s, y, "attention output")


def _fed(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """The MLP or the experts on the whole sequence, the result divided again where the sequence is."""
    with tape.group("mlp"):
        return reduce_scatter(tape, s, feed_forward(tape, s, block, all_gather(tape, s, x, hidden, "MLP input"), hidden), "MLP output")


def feed_forward(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    """The MLP or the mixture of experts, whole or tile by tile."""
    if s.tile:
        return tiled(tape, s, block, x, hidden, feed_forward)
    return moe(tape, s, block, block.experts, x, hidden) if block.experts is not None else mlp(tape, s, block, x, hidden)
