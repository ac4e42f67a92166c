"""One block, put together; counted once for a structure and remembered."""

from __future__ import annotations

from functools import lru_cache

from advisor.architecture import Block
from advisor.arithmetic.blocks.attention import attention
from advisor.arithmetic.blocks.mlp import mlp
from advisor.arithmetic.blocks.operations import norm, residual
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Counted, Tape, Value


@lru_cache(maxsize=2048)
def count(block: Block, hidden: int, setting: Setting) -> Counted:
    """What autograd keeps of one block, and what its forward and backward pass need beside."""
    tape = Tape()
    x = tape.enter("residual stream", hidden, setting.stream, grad=setting.input_grad)
    return tape.count(dense(tape, setting, block, x, hidden))


def dense(tape: Tape, s: Setting, block: Block, x: Value, hidden: int) -> Value:
    """A decoder or encoder layer: norm, attention, norm, MLP; or attention and MLP side by side on one norm."""
    normed = norm(tape, s, x, "attention norm")
    attended = attention(tape, s, block, normed)
    if block.parallel:
        second = normed if block.norms < 2 else norm(tape, s, x, "MLP norm")
        return residual(tape, residual(tape, mlp(tape, s, block, second, hidden), attended), x)
    if block.norms >= 4:
        attended = norm(tape, s, attended, "norm after attention")
    x = residual(tape, x, attended)
    y = mlp(tape, s, block, norm(tape, s, x, "MLP norm"), hidden)
    if block.norms >= 4:
        y = norm(tape, s, y, "norm after MLP")
    return residual(tape, x, y)
