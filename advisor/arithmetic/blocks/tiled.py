"""A feed-forward part that runs a tile of the sequence at a time: one operation that keeps its input alone and makes each tile anew in backward."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from advisor.architecture import Block
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import Size, Tape, Value

Feed = Callable[[Tape, Setting, Block, Value, float], Value]


def tiled(tape: Tape, s: Setting, block: Block, x: Value, hidden: float, feed: Feed) -> Value:
    """``feed`` (an MLP, or router and experts) over ``s.tiles`` tiles of ``s.tile`` tokens.

    Forward, without a graph: a tile's largest moment, or the tiles' outputs beside the tensor they are joined to. Backward, tile by tile: what the
    tile keeps and its gradients, and the weight gradient that is added to those of the tiles before. The input's gradient is made whole at once.

    Source: unsloth_zoo tiled_mlp.py TiledMLP (which writes into one output), axolotl monkeypatch/tiled_mlp, deepspeed runtime/sequence_parallel/ulysses_sp.py
    TiledMLP, liger-kernel ops/tiled_mlp.py (which join a list of outputs).
    """
    inner = Tape()
    one = feed(inner, replace(s, tile=0), block, inner.enter(x.name, x.width, x.element, grad=True), hidden)
    counted = inner.count(one)

    def of_tile(size: Size) -> Size:
        return (0.0, 0.0, size[0] * s.tile + size[2], size[3])

    def largest(sizes: list[Size]) -> Size:
        return max(map(of_tile, sizes), key=lambda size: size[2] + size[3], default=(0.0, 0.0, 0.0, 0.0))

    forward = largest(list(counted.bare))
    output = one.width * one.element
    if s.tiles_joined and output * s.tile * s.tiles > forward[2] + forward[3]:
        forward = (output, 0.0, 0.0, 0.0)
    again = max((step.fresh for step in counted.backward), default=0.0) * s.weight if s.tiles > 1 else 0.0
    steps = [(a + e, b + f, c + g + again, d + h) for (a, b, c, d), (e, f, g, h) in ((step.saved, step.live) for step in counted.backward)]
    return tape.run(
        "tiled feed-forward", (x,), one.width, one.element, saves=(x,), forward=forward, backward=largest(steps), weights=counted.weights, label="MLP output",
    )  # fmt: skip
