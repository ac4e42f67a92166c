"""Gemma 3n's layer: AltUp predicts and corrects several streams of hidden states around a layer that runs on one of them, with LAuReL beside attention.

Source: modeling_gemma3n.py of transformers 5.24: Gemma3nTextDecoderLayer.forward, Gemma3nTextAltUp.predict and correct, Gemma3nTextLaurelBlock.
"""

from __future__ import annotations

from advisor.architecture import Block
from advisor.arithmetic.blocks.attention import attention
from advisor.arithmetic.blocks.mlp import activate, mlp
from advisor.arithmetic.blocks.operations import cast, linear, norm, residual, tokens
from advisor.arithmetic.blocks.per_layer import GATE
from advisor.arithmetic.blocks.setting import Setting
from advisor.arithmetic.blocks.tape import NOTHING, Tape, Value

COEFFICIENTS = "correction_coefs"


def streams(block: Block) -> int:
    """Streams of hidden states that a layer takes and gives: AltUp's inputs, else one."""
    return next((t.shape[0] for t in block.tensors if t.name == COEFFICIENTS), 1)


def altup(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    """A layer on streams ``[inputs, micro_batch, seq_len, hidden]``; the active one is the first."""
    number = streams(block)
    predicted = _predicted(tape, s, x, number, hidden)
    active = _first(tape, predicted, hidden)
    normed = norm(tape, s, active, "attention norm")
    beside = _laurel(tape, s, block, normed, hidden)
    with tape.group("self_attn"):
        attended = norm(tape, s, attention(tape, s, block, normed, hidden), "norm after attention")
    both = residual(tape, residual(tape, active, attended), beside)
    both = tape.run("halve", (both,), hidden, both.element, label="attention and LAuReL")
    with tape.group("mlp"):
        fed = mlp(tape, s, block, norm(tape, s, both, "MLP norm"), hidden)
    activated = residual(tape, both, norm(tape, s, fed, "norm after MLP"))
    corrected = _corrected(tape, s, predicted, activated, number, hidden)
    return _with_own_embedding(tape, s, block, corrected, hidden)


def _first(tape: Tape, x: Value, hidden: float) -> Value:
    """One stream of several: a view, whose backward fills the gradient of all."""
    return tape.run("active stream", (x,), hidden, x.element, view=True, joins=True, label="active stream")


def _modalities(tape: Tape, s: Setting, x: Value, number: int, name: str) -> Value:
    """Coefficients' input: a norm, a scale, a router to as many values as there are streams, and a tanh in fp32."""
    scaled = norm(tape, s, x, f"{name} router norm")
    scaled = tape.run(f"{name} router scale", (scaled,), x.width, scaled.element, label=f"{name} router input")
    routed = cast(tape, linear(tape, s, scaled, "modality_router", number), 4, f"{name} routed as fp32")
    return cast(tape, tape.run(f"{name} tanh", (routed,), number, 4, saves_output=True, label=f"{name} modalities"), x.element)


def _predicted(tape: Tape, s: Setting, x: Value, number: int, hidden: float) -> Value:
    """Each stream as a mixture of all, added to itself; the product comes streams last and is copied to streams first."""
    modalities = _modalities(tape, s, _first(tape, x, hidden), number, "prediction")
    weights = linear(tape, s, modalities, "prediction_coefs", number * number)
    mixed = tape.run("mix streams", (x, weights), number * hidden, x.element, saves=(x, weights), label="mixed streams")
    mixed = tape.run("add streams", (mixed, x), number * hidden, x.element, view=True, label="mixed streams")
    return tape.run("order of streams", (mixed,), number * hidden, x.element, label="predicted streams")


def _laurel(tape: Tape, s: Setting, block: Block, x: Value, hidden: float) -> Value:
    rank = next(float(t.shape[0]) for t in block.tensors if t.name == "linear_left")
    low = linear(tape, s, x, "linear_left", rank)
    return residual(tape, x, norm(tape, s, linear(tape, s, low, "linear_right", hidden), "LAuReL norm"))


def _corrected(tape: Tape, s: Setting, predicted: Value, activated: Value, number: int, hidden: float) -> Value:
    """What the layer changed in its stream, times a coefficient for each stream, added to the predictions."""
    modalities = _modalities(tape, s, activated, number, "correction")
    change = residual(tape, activated, _first(tape, predicted, hidden))
    repeated = tape.run("repeat change", (change,), number * hidden, change.element, label="change for all streams")
    weights = linear(tape, s, modalities, COEFFICIENTS, number)
    product = tokens(number * hidden * change.element)  # gradient x change, before it is summed to the coefficients
    scaled = tape.run("correct", (repeated, weights), number * hidden, change.element, saves=(repeated, weights), backward=product, label="corrected streams")
    return tape.run("add predictions", (scaled, predicted), number * hidden, change.element, view=True, label="corrected streams")


def _with_own_embedding(tape: Tape, s: Setting, block: Block, corrected: Value, hidden: float) -> Value:
    """The first stream, scaled and gated by this layer's embedding, added in place to all the others: backward clones the gradient of all."""
    small = next(float(t.shape[0]) for t in block.tensors if t.name == GATE)
    e = corrected.element
    first = tape.run("clone", (corrected,), hidden, e, joins=True, label="first stream")
    weight = hidden if s.trained else 0.0
    first = tape.run("output scale", (first,), hidden, e, saves=(first,) if s.trained else (), weights=weight, label="scaled first stream")
    act = activate(tape, s, linear(tape, s, first, GATE, small))
    given = Value("embedding of this layer", small, e, True, NOTHING)
    product = tape.run("per-layer product", (act, given), small, act.element, saves=(act, given), label="gated embedding of this layer")
    more = norm(tape, s, linear(tape, s, product, "per_layer_projection", hidden), "norm after this layer's embedding")
    whole = tokens(corrected.width * e)
    return tape.run("add to the others", (corrected, more), corrected.width, e, view=True, backward=whole, label="streams")
