"""What Gemma 3n and 4 have beside attention and MLP: an embedding of each layer's own, experts beside the MLP."""

from __future__ import annotations

from advisor.architecture import Block
from advisor.arithmetic.blocks.mlp import activate, mlp
from advisor.arithmetic.blocks.moe import moe
from advisor.arithmetic.blocks.operations import linear, norm, residual, rms_norm
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Tape, Value

GATE = "per_layer_input_gate"


def has_own_embedding(block: Block) -> bool:
    """Whether a layer multiplies by an embedding of its own."""
    return any(t.name == GATE for t in block.tensors)


def own_embedding(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    """``x + norm(project(act(gate(x)) * embedding))``; the embedding is a view of all layers' (modeling_gemma4 Gemma4TextDecoderLayer.forward)."""
    small = next(float(t.shape[0]) for t in block.tensors if t.name == GATE)
    act = activate(tape, s, linear(tape, s, x, GATE, small))
    given = Value("embedding of this layer", small, x.element, True, NOTHING)
    product = tape.run("per-layer product", (act, given), small, act.element, saves=(act, given), label="gated embedding of this layer")
    return residual(tape, x, norm(tape, s, linear(tape, s, product, "per_layer_projection", hidden), "norm after this layer's embedding"))


def beside_mlp(tape: Tape, s: Setting, block: Block, stream: Value, x: Value, hidden: float) -> Value:
    """``norm(MLP(x)) + norm(experts(norm(stream)))``; the router has a norm without a weight of its own (modeling_gemma4 Gemma4TextRouter)."""
    assert block.experts is not None
    dense = norm(tape, s, mlp(tape, s, block, x, hidden), "norm after the dense MLP")
    bare = rms_norm(tape, s, stream, "router norm", bare=True)
    scaled = tape.run("router scale", (bare,), hidden, bare.element, saves=(bare,) if s.trained else (), label="scaled router input")
    routed = moe(tape, s, block, block.experts, norm(tape, s, stream, "norm before the experts"), hidden, told=scaled)
    return residual(tape, dense, norm(tape, s, routed, "norm after the experts"))
